#include "execute/cuda/steps/signals.hpp"
#include "runtime/cuda/one_block.cuh"

namespace imbrex::cuda {
namespace {

constexpr unsigned threads = 32;

__global__ void __launch_bounds__(threads) signals(const __grid_constant__ JointArgs args) {
  if (threadIdx.x == 0) run_joint(args);
}

}  // namespace

cudaError_t launch_signals(const JointArgs& args, cudaStream_t stream) {
  return launch_one_block(signals, threads, args, stream);
}

cudaError_t load_signals() { return load(signals); }

}  // namespace imbrex::cuda
