#include "execute/cuda/steps/signals.hpp"
#include "runtime/cuda/one_block.cuh"

namespace imbrex::cuda {
namespace {

constexpr unsigned threads = 32, all_lanes = 0xffffffff;

// What run_joint does, by a warp: a plan may wait for each slice of the batch, and post to each rank. A look at a
// counter takes most of a microsecond, so lanes look at once.
__global__ void __launch_bounds__(threads) signals(const __grid_constant__ JointArgs args) {
  const Protocol& p = args.protocol;
  const std::uint32_t lane = threadIdx.x;
  std::uint64_t number = 0;
  bool sound = false;
  if (lane == 0) {
    number = device::read_epoch(p);
    sound = !device::given_up(p, false);
    device::enter_epoch(p, number);
    if (sound) device::pause_for_tests(p, number, args.queue * 0x10000u + args.task, args.step_and_one);
  }
  number = __shfl_sync(all_lanes, number, 0);
  sound = __shfl_sync(all_lanes, sound, 0);
  for (std::uint32_t i = lane; sound && i < args.post_count; i += threads)
    device::post_add(p, reinterpret_cast<std::byte*>(args.posts[i].counter) + counters_of(p, number), 1u);
  __syncwarp();
  if (lane == 0) device::advance_epoch(p, number);
  for (std::uint32_t i = lane; sound && i < args.wait_count; i += threads) sound = wait_in(args, number, args.waits[i]);
}

}  // namespace

cudaError_t launch_signals(const JointArgs& args, cudaStream_t stream) {
  return launch_one_block(signals, threads, args, stream);
}

cudaError_t load_signals() { return load(signals); }

}  // namespace imbrex::cuda
