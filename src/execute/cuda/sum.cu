#include "execute/cuda/sum.hpp"

#include <algorithm>

#include "execute/cuda/element.cuh"

namespace imbrex::cuda {
namespace {

constexpr unsigned threads = 256, most_blocks = 1024;

__global__ void __launch_bounds__(threads) sum(const __grid_constant__ SumArgs args) {
  reduce(args.task, args.regions, nullptr, 0, blockIdx.x * threads + threadIdx.x, gridDim.x * threads);
}

__global__ void __launch_bounds__(threads) sum_with_bias(const __grid_constant__ SumArgs args) {
  reduce<true>(args.task, args.regions, nullptr, 0, blockIdx.x * threads + threadIdx.x, gridDim.x * threads, args.bias);
}

}  // namespace

cudaError_t launch_sum(const SumArgs& args, cudaStream_t stream) {
  const std::uint32_t parts = args.task.rows * ((args.task.cols + 7) / 8);
  const unsigned blocks = std::min((parts + threads - 1) / threads, most_blocks);
  if (args.bias == nullptr)
    sum<<<blocks, threads, 0, stream>>>(args);
  else
    sum_with_bias<<<blocks, threads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace imbrex::cuda
