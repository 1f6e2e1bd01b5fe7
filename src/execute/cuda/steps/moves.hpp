// The kernel of a step that copies or sums.
#pragma once

#include <cuda_runtime_api.h>

#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

struct MoveArgs {
  const TaskEntry* task;  ///< a transfer or a reduction, in the GPU's memory
  const RegionEntry* regions;
  device::State* state;  ///< this rank's; null: nothing depends on epochs
  const void* in;        ///< what regions of base `a` lie in
  void* out;             ///< and those of base `out`
};

/// `rows`, `cols`: of the task's regions.
cudaError_t launch_move(const MoveArgs& args, std::uint32_t rows, std::uint32_t cols, cudaStream_t stream);

/// Loads the kernel.
cudaError_t load_move();

}  // namespace imbrex::cuda
