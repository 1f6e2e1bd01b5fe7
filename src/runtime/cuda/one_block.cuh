// Kernels of one block.
#pragma once

#include <cuda_runtime.h>

namespace imbrex::cuda {

/// Gives the launch's own status: the last error of the thread may be the caller's.
template <typename Args>
cudaError_t launch_one_block(void (*kernel)(Args), unsigned threads, const Args& args, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(1);
  config.blockDim = dim3(threads);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, args);
}

/// While kernels wait for this rank, none can be loaded.
template <typename Args>
cudaError_t load(void (*kernel)(Args)) {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, kernel);
}

}  // namespace imbrex::cuda
