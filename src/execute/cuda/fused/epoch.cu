#include "execute/cuda/fused/epoch.hpp"
#include "execute/cuda/protocol.cuh"
#include "runtime/cuda/one_block.cuh"

namespace imbrex::cuda {
namespace {

constexpr unsigned threads = 256;

__global__ void __launch_bounds__(threads) skip(const __grid_constant__ SkipArgs args) {
  const Protocol& p = args.protocol;
  // The epoch has failed, and no other one follows it: peers are not told.
  if (__syncthreads_or(device::given_up(p, false)) != 0) return;
  const std::uint64_t number = p.own->epoch;
  const Epoch skipped = epoch_of(p, number + 1);
  for (std::uint32_t i = threadIdx.x; i < args.signals; i += threads)
    device::add_relaxed(p.counters + skipped.set * p.set_stride + static_cast<std::uint64_t>(i) * p.counter_stride,
                        args.posts[i]);
  __syncthreads();
  if (threadIdx.x != 0) return;
  device::fence_system();
  CopyState& own = copies_of(*p.own);
  const std::uint32_t before = own.rounds++ * p.ranks;
  for (std::uint32_t r = 0; r < p.ranks; ++r) device::add_relaxed(&copies_of(device::state_of(p, r)).arrivals, 1u);
  const bool all_came =
      device::wait_for(p, &own.arrivals, before + p.ranks, [&](device::Fault& fault, std::uint32_t seen) {
        fault.kind = static_cast<std::uint32_t>(FaultKind::skip);
        fault.expected = p.ranks;
        fault.seen = seen - before;
        fault.epoch = number;
      });
  if (!all_came) return;
  p.own->epoch = number + 2;
  own.turns[number & 1] = epoch_of(p, number + 2).turn + 1;
}

}  // namespace

cudaError_t skip_epoch(const SkipArgs& args, cudaStream_t stream) {
  return launch_one_block(skip, threads, args, stream);
}

cudaError_t load_skip_epoch() { return load(skip); }

}  // namespace imbrex::cuda
