#include "links/links.hpp"

namespace imbrex::bench {
namespace {

constexpr std::uint32_t bulk_bytes = 16384;

__device__ std::byte* region(const LinkArgs& a, std::uint32_t rank, std::uint32_t source) {
  return a.first + rank * a.stride + source * a.bytes;
}

__device__ void bulk(const LinkArgs& a, std::byte* shared) {
  if (threadIdx.x != 0) return;
  const auto from = static_cast<std::uint32_t>(__cvta_generic_to_shared(shared));
  const auto send = [&](std::uint32_t peer, std::uint64_t at) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     region(a, (a.rank + peer) % a.ranks, a.rank) + at),
                 "r"(from), "r"(bulk_bytes)
                 : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 12;" ::: "memory");
  };
  const std::uint64_t step = gridDim.x * std::uint64_t{bulk_bytes}, window = a.window == 0 ? step : a.window;
  for (std::uint64_t begin = 0; begin < a.bytes; begin += window)
    for (std::uint32_t i = 1; i < a.ranks; ++i)
      for (std::uint64_t at = begin + blockIdx.x * std::uint64_t{bulk_bytes}; at < min(begin + window, a.bytes);
           at += step)
        send(i, at);
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <Way way>
__device__ void move(const LinkArgs& a) {
  constexpr int batch = 4;
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x, all = a.bytes / 16,
                      window = a.window == 0 ? batch * step : a.window / 16;
  std::uint32_t sum = 0;
  for (std::uint64_t begin = 0; begin < all; begin += window)
    for (std::uint32_t i = 1; i < a.ranks; ++i)
      for (std::uint64_t parts = min(begin + window, all),
                         p = begin + blockIdx.x * std::uint64_t{blockDim.x} + threadIdx.x;
           p < parts; p += batch * step) {
        auto* remote = reinterpret_cast<uint4*>(region(a, (a.rank + i) % a.ranks, a.rank));
        auto* local = reinterpret_cast<uint4*>(region(a, a.rank, (a.rank + i) % a.ranks));
        const bool pull = way == Way::loads || (way == Way::both && blockIdx.x % 2 == 0);
        uint4 words[batch];
#pragma unroll
        for (int b = 0; b < batch; ++b)
          words[b] = p + b * step >= parts ? uint4{}
                     : pull                ? __ldcs(remote + p + b * step)
                     : way == Way::copies  ? __ldcs(local + p + b * step)
                                           : uint4{1, 2, 3, static_cast<std::uint32_t>(p)};
#pragma unroll
        for (int b = 0; b < batch; ++b) {
          if (p + b * step >= parts) continue;
          uint4* to = remote + p + b * step;
          if (pull) {
            sum += words[b].x ^ words[b].w;
          } else if (way == Way::relaxed_stores || way == Way::stores_and_clears) {
            for (uint4* at : {to, local + p + b * step})
              if (at == to || way == Way::stores_and_clears)
                asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(words[b].x),
                             "r"(words[b].y), "r"(words[b].z), "r"(words[b].w)
                             : "memory");
          } else {
            *to = words[b];
          }
        }
      }
  if (sum == 0x12345678u) *a.sink = sum;
}

__global__ void __launch_bounds__(1024) links(const __grid_constant__ LinkArgs a) {
  extern __shared__ __align__(128) std::byte shared[];
  switch (a.way) {
    case Way::stores: return move<Way::stores>(a);
    case Way::relaxed_stores: return move<Way::relaxed_stores>(a);
    case Way::copies: return move<Way::copies>(a);
    case Way::stores_and_clears: return move<Way::stores_and_clears>(a);
    case Way::loads: return move<Way::loads>(a);
    case Way::both: return move<Way::both>(a);
    case Way::bulk: return bulk(a, shared);
  }
}

}  // namespace

cudaError_t launch_links(const LinkArgs& args, unsigned blocks) {
  links<<<blocks, 512, bulk_bytes>>>(args);
  return cudaGetLastError();
}

}  // namespace imbrex::bench
