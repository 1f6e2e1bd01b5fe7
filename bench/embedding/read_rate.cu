// The rate at which the card reads: 16 bytes a lane, eight loads in flight, each byte once.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace {

constexpr int in_flight = 8, threads = 256;

__global__ void __launch_bounds__(threads) read_all(const uint4* memory, std::uint64_t count, std::uint32_t* sink) {
  std::uint32_t sum = 0;
  const std::uint64_t step = std::uint64_t{gridDim.x} * threads;
  std::uint64_t at = std::uint64_t{blockIdx.x} * threads + threadIdx.x;
  for (; at + (in_flight - 1) * step < count; at += in_flight * step) {
    uint4 held[in_flight];
#pragma unroll
    for (int u = 0; u < in_flight; ++u)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(held[u].x), "=r"(held[u].y), "=r"(held[u].z), "=r"(held[u].w)
                   : "l"(memory + at + u * step));
#pragma unroll
    for (int u = 0; u < in_flight; ++u) sum ^= held[u].x ^ held[u].y ^ held[u].z ^ held[u].w;
  }
  for (; at < count; at += step) sum ^= memory[at].x;
  if (sum == 0x12345678u) *sink = sum;  // so that nothing is left out
}

}  // namespace

/// Reads `bytes`, a multiple of 16, with so many blocks.
extern "C" int embedding_read(const void* memory, std::int64_t bytes, void* sink, int blocks, void* stream) {
  read_all<<<blocks, threads, 0, static_cast<cudaStream_t>(stream)>>>(
      static_cast<const uint4*>(memory), static_cast<std::uint64_t>(bytes) / 16, static_cast<std::uint32_t*>(sink));
  return cudaPeekAtLastError();
}
