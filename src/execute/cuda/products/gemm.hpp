// The persistent GEMM kernels, without the headers that they are built from: one launcher per variant.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

#include "execute/cuda/products/kernel_variant.hpp"
#include "execute/cuda/products/tensor_maps.hpp"
#include "execute/cuda/tables/table.hpp"
#include "runtime/cuda/early_launch.hpp"

namespace imbrex::cuda {

using TensorMaps = KeptMaps<CUtensorMap>;

/// A compiled variant. Blocks all run at once, one to an SM: waiting blocks never keep others from starting.
struct GemmKernel : KernelVariant {
  /// Clusters that run at once on the current device; 0: this kernel does not run here.
  int (*workers)();
  /// `maps`: of this execution's launches. `early`: as early_launch, where the kernel bears it.
  cudaError_t (*launch)(const GemmArgs& args, int workers, TensorMaps& maps, bool early, cudaStream_t stream);
};

/// What a line of variants.def brings: a kernel for each layout of B.
using GemmKernels = std::span<const GemmKernel>;

/// Variants that use tensor cores, none where they were left out of the build.
std::span<const GemmKernel* const> tensor_core_kernels();

/// Any type, alignment and tile, on any GPU; slow.
const GemmKernel& plain_kernel(Type type);

}  // namespace imbrex::cuda
