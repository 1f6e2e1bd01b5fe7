// Every rank looks at its own tensor, as cpu_all_reduce.cpp does, and tells the others, block by block: block b of all
// ranks tell each other whether one of the groups that they saw could exceed the tolerance. A block that hears of one
// writes down the epoch that follows, which then runs exactly; all ranks hear the same.
#include "collectives/cuda/quantized/quantized_block.cuh"
#include "collectives/cuda/vote/vote.hpp"
#include "collectives/cuda/wire/packet.cuh"

namespace imbrex::cuda {
namespace {

/// Whether this thread's group could. By a whole warp; a group's blocks lie in neighbouring lanes.
template <Type type>
__device__ __forceinline__ bool group_exceeds(const VoteArgs& a, const float (&values)[quantized_block_values]) {
  const codec::Extremes extremes =
      extremes_of({.asymmetric = true, .group = a.pair.reduce_scatter.group}, values);  // both of them
  const auto infinity = static_cast<std::int32_t>(codec::infinity_bits);
  const float low = codec::unordered(extremes.low), high = codec::unordered(extremes.high);
  // What is no finite value is beyond every tolerance.
  if (extremes.high >= infinity || extremes.low <= codec::ordered(-codec::float_of(codec::infinity_bits))) return true;
  return codec::exceeds(a.pair, codec::range_of(type), static_cast<int>(a.comm.ranks), a.two_shot, a.allowed, low,
                        high);
}

template <Type type>
__global__ void __launch_bounds__(vote_threads, 1) vote(const __grid_constant__ VoteArgs a) {
  device::wait_for_stream();
  const Comm& c = a.comm;
  const BlockState state = read_state(c);
  const bool well = begins_well(c);
  const BlockView<type> in{static_cast<std::byte*>(const_cast<void*>(a.in)), a.count,
                           reinterpret_cast<std::uint64_t>(a.in) % 16 == 0};
  maybe_pause(c, state.epoch, 0);
  bool exceeds = false;
  // Whole warps go round together.
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  for (std::uint64_t block = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; block / 32 * 32 < a.value_blocks;
       block += step) {
    const bool there = block < a.value_blocks;
    float values[quantized_block_values] = {};
    if (there) BlockView<type>::to_float(in.load(block), values);
    exceeds |= group_exceeds<type>(a, values) && there;
  }
  exceeds = __syncthreads_or(exceeds) != 0;
  const auto slot_of = [&](std::uint32_t rank, std::uint32_t source) {
    return slots_of(c, rank, state.epoch) + source * a.source_stride + blockIdx.x * packet_bytes;
  };
  if (const std::uint32_t peer = threadIdx.x; peer < c.ranks) {
    if (well && peer != c.rank) {
      store_packet(slot_of(peer, c.rank), {exceeds ? 1u : 0u, 0, 0, 0});
      uint4 got[1][1] = {};
      collect<1, 1>(c, state.epoch, slot_of(c.rank, peer), 0, 0, 1, got, [&](int, int) {
        return Place{CommStep::vote, peer, blockIdx.x, 0, 0};
      });
      exceeds |= got[0][0].x == 1;
    }
    if (exceeds) *const_cast<volatile std::uint64_t*>(&state_of(c, c.rank).exact_epoch) = state.epoch + 1;
  }
  end_epoch(c, state);
}

}  // namespace

const void* vote_kernel(Type type) {
  return type == Type::bf16   ? reinterpret_cast<const void*>(&vote<Type::bf16>)
         : type == Type::fp16 ? reinterpret_cast<const void*>(&vote<Type::fp16>)
                              : reinterpret_cast<const void*>(&vote<Type::fp32>);
}

}  // namespace imbrex::cuda
