#include "execute/cuda/products/sum.hpp"

#include <algorithm>

#include "execute/cuda/products/element.cuh"

namespace imbrex::cuda {
namespace {

constexpr unsigned threads = 256, most_blocks = 1024;

__global__ void __launch_bounds__(threads) sum(const __grid_constant__ SumArgs args) {
  reduce(args.task, args.regions, args.bias, nullptr, 0, blockIdx.x * threads + threadIdx.x, gridDim.x * threads);
}

}  // namespace

cudaError_t launch_sum(const SumArgs& args, cudaStream_t stream) {
  const std::uint32_t parts = args.task.rows * ((args.task.cols + 7) / 8);
  const unsigned blocks = std::min((parts + threads - 1) / threads, most_blocks);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, sum, args);
}

}  // namespace imbrex::cuda
