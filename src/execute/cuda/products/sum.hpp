// A Reduction by a kernel of its own.
#pragma once

#include <cuda_runtime_api.h>

#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

/// One reduction task and its regions, sources first, by value into the kernel.
struct SumArgs {
  TaskEntry task;
  RegionEntry regions[max_sum_regions];
  const void* bias;  ///< what regions of base `bias` are relative to; null: there is none
};

cudaError_t launch_sum(const SumArgs& args, cudaStream_t stream);

}  // namespace imbrex::cuda
