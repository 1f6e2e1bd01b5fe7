// Launches that overlap the end of the stream's previous kernel.
#pragma once

#include <cuda_runtime_api.h>

namespace imbrex::cuda {

/// Lets a kernel's blocks start while the stream's previous kernel ends; they wait for its end themselves
/// (wait_for_stream in imbrex/device/ordering.hpp). On Hopper only: the code that other GPUs run was compiled for 8.0,
/// which has no instruction to wait. Not `wanted` where ranks share a GPU: it could take the place of another rank's
/// kernel, which this one's last waits for.
inline cudaLaunchAttribute early_launch(bool wanted = true) {
  int device = 0, generation = 0;
  const bool hopper = cudaGetDevice(&device) == cudaSuccess &&
                      cudaDeviceGetAttribute(&generation, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
                      generation == 9;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = wanted && hopper ? 1 : 0;
  return attribute;
}

}  // namespace imbrex::cuda
