#include "execute/cuda/lanes/joint.hpp"
#include "runtime/cuda/one_block.cuh"

namespace imbrex::cuda {
namespace {

constexpr unsigned threads = 32;

// In addition to the limit of a wait: what a host takes to end collectives (runtime::Communicator), and more.
constexpr std::uint64_t patience_ns = 60'000'000'000;

__device__ void stay(const JointArgs& args) {
  const std::uint64_t begin = device::now_ns();
  while (device::load_relaxed(&args.record->ended) == 0u) {
    device::pause_ns(1000);
    if (device::now_ns() - begin > (std::uint64_t{args.protocol.limit} << 20) + patience_ns) __trap();
  }
}

__global__ void __launch_bounds__(threads) join(const __grid_constant__ JointArgs args) {
  if (threadIdx.x == 0 && !run_joint(args)) stay(args);
}

}  // namespace

cudaError_t launch_joint(const JointArgs& args, cudaStream_t stream) {
  return launch_one_block(join, threads, args, stream);
}

cudaError_t load_joint() { return load(join); }

}  // namespace imbrex::cuda
