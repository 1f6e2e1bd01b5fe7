#include "execute/cuda/steps/moves.hpp"

#include <algorithm>

#include "execute/cuda/products/element.cuh"
#include "runtime/cuda/one_block.cuh"

namespace imbrex::cuda {
namespace {

constexpr unsigned threads = 256, most_blocks = 1024;

__global__ void __launch_bounds__(threads) move_or_sum(const __grid_constant__ MoveArgs a) {
  // Where a wait before it was given up, it must not store.
  if (a.state != nullptr && device::load_relaxed(&a.state->abort) != 0u) return;
  const std::uint32_t copy = a.state != nullptr ? static_cast<std::uint32_t>(a.state->epoch & 1u) : 0;
  const std::uint32_t thread = blockIdx.x * threads + threadIdx.x, all = gridDim.x * threads;
  if (a.task.kind == TaskKind::transfer)
    move(a.task, a.regions, a.in, nullptr, a.out, copy, thread, all);
  else
    reduce(a.task, a.regions, a.bias, a.out, copy, thread, all);
}

}  // namespace

cudaError_t launch_move(const MoveArgs& args, cudaStream_t stream) {
  const std::uint64_t parts = std::uint64_t{args.regions[0].rows} * ((args.regions[0].cols + 7) / 8);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(std::min<std::uint64_t>((parts + threads - 1) / threads, most_blocks)));
  config.blockDim = dim3(threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, move_or_sum, args);
}

cudaError_t load_move() { return load(move_or_sum); }

}  // namespace imbrex::cuda
