// The kernel of a step that copies or sums.
#pragma once

#include <cuda_runtime_api.h>

#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

/// A transfer or a reduction and its regions, sources first, by value into the kernel.
struct MoveArgs {
  TaskEntry task;
  RegionEntry regions[most_move_regions];
  device::State* state;  ///< this rank's; null: nothing depends on epochs
  const void* bias;      ///< what regions of base `bias` are relative to; null: there is none
  const void* in;        ///< of base `a`
  void* out;             ///< of base `out`
};

cudaError_t launch_move(const MoveArgs& args, cudaStream_t stream);

/// Loads the kernel.
cudaError_t load_move();

}  // namespace imbrex::cuda
