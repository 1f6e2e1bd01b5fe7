#include "execute/cuda/lanes/epoch.hpp"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {
namespace {

constexpr int threads = 256;

__device__ SkipState* skip_state(std::byte* states) {
  return reinterpret_cast<SkipState*>(states + sizeof(EpochState));
}

// False if a rank gave up, or this one does now.
__device__ bool wait_for_all_ranks(const Protocol& p, std::uint64_t epoch, const std::uint32_t& arrivals,
                                   std::uint32_t expected) {
  const std::uint64_t begin = global_nanoseconds();
  for (unsigned polls = 0;; ++polls) {
    const std::uint32_t seen = load_acquire_system(&arrivals);
    if (static_cast<std::int32_t>(seen - expected) >= 0) return true;
    if (polls > 16) __nanosleep(64);
    if (polls % 256 != 255) continue;
    if (is_given_up(p)) return false;
    if (global_nanoseconds() - begin <= p.limit_ns) continue;
    if (atomicCAS(&p.state->fault_lock, 0u, 1u) == 0u) {
      p.fault->count = p.ranks;
      p.fault->seen = seen - (expected - p.ranks);
      p.fault->epoch = epoch;
      __threadfence_system();
      p.fault->state = fault_in_skip;
    }
    for (std::uint32_t r = 0; r < p.ranks; ++r)
      store_relaxed_system(
          &reinterpret_cast<EpochState*>(p.peer_states + static_cast<std::int64_t>(r) * p.peer_stride)->abort, 1u);
    return false;
  }
}

__global__ void __launch_bounds__(threads) skip(const __grid_constant__ SkipArgs args) {
  const Protocol& p = args.protocol;
  // The epoch has failed, and no other one follows it: nobody is told anything.
  if (__syncthreads_or(came_too_late(p)) != 0) return;
  const std::uint64_t number = p.state->epoch;
  const Epoch skipped = epoch_of(p, number + 1);
  for (std::uint32_t i = threadIdx.x; i < args.signals; i += threads)
    add_relaxed_system(p.counters + skipped.set * p.set_stride + static_cast<std::uint64_t>(i) * p.counter_stride,
                       args.posts[i]);
  __syncthreads();
  if (threadIdx.x != 0) return;
  fence_system();
  SkipState* own = skip_state(reinterpret_cast<std::byte*>(p.state));
  const std::uint32_t expected = ++own->rounds * p.ranks;
  for (std::uint32_t r = 0; r < p.ranks; ++r)
    add_relaxed_system(&skip_state(p.peer_states + static_cast<std::int64_t>(r) * p.peer_stride)->arrivals, 1u);
  if (!wait_for_all_ranks(p, number, own->arrivals, expected)) return;
  p.state->epoch = number + 2;
  p.state->turns[number & 1] = epoch_of(p, number + 2).turn + 1;
}

}  // namespace

cudaError_t skip_epoch(const SkipArgs& args, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, skip, args);
}

cudaError_t load_skip_epoch() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, skip);
}

}  // namespace imbrex::cuda
