#include "execute/cuda/lanes/joint.hpp"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {
namespace {

// Beside the limit of a wait: what a host takes to end collectives (runtime::Communicator), and more.
constexpr std::uint64_t patience_ns = 60'000'000'000;

__device__ void stay(const JointArgs& args) {
  const std::uint64_t begin = device::now_ns();
  while (device::load_relaxed(&args.record->ended) == 0u) {
    device::pause_ns(1000);
    if (device::now_ns() - begin > args.protocol.limit_ns + patience_ns) __trap();
  }
}

__device__ bool await_blocks(const JointArgs& args, const Epoch& epoch) {
  const Protocol& p = args.protocol;
  const auto come = [&] { return device::load_relaxed(&p.own->readers); };
  return device::wait_until(
      p, [&] { return come() >= args.arrivals; },
      [&](device::Fault& fault) {
        fault.kind = static_cast<std::uint32_t>(FaultKind::arrival);
        fault.place[0] = args.queue;
        fault.place[1] = args.task;
        fault.expected = args.arrivals;
        fault.seen = come();
        fault.epoch = epoch.number;
      });
}

__global__ void __launch_bounds__(32) join(const __grid_constant__ JointArgs args) {
  if (threadIdx.x != 0) return;
  const Protocol& p = args.protocol;
  const Epoch epoch = epoch_of(p, device::read_epoch(p));
  bool sound = !device::given_up(p, false);
  if (sound) {
    device::pause_for_tests(p, epoch.number, args.queue * 0x10000u + args.task, args.step_and_one);
    post_all(p, epoch, {args.post_count > 0 ? args.posts[0] : PostEntry{}, args.posts, args.post_count});
    if (args.tells != 0) args.record->under_way = step_word(epoch.number, 0);
    sound = args.arrivals == 0 || await_blocks(args, epoch);
  }
  // Behind that: those that wait for arrivals count them before any joint is one.
  advance_epoch(p, epoch.number);
  TaskEntry task{};
  task.queue = static_cast<std::uint16_t>(args.queue);
  task.task = args.task;
  sound = sound && wait_for_all(p, epoch, task, args.waits, 0, args.wait_count);
  if (!sound) return stay(args);
  if (args.tells != 0) args.record->under_way = step_word(epoch.number, args.step_and_one);
}

}  // namespace

cudaError_t launch_joint(const JointArgs& args, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, join, args);
}

cudaError_t load_joint() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, join);
}

}  // namespace imbrex::cuda
