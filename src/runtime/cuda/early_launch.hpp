// Launches that overlap the end of the stream's previous kernel.
#pragma once

#include <cuda_runtime_api.h>

namespace imbrex::cuda {

/// Lets a kernel's blocks start while the stream's previous kernel ends; they wait for its end themselves
/// (wait_for_stream in ordering.cuh).
inline cudaLaunchAttribute early_launch() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  return attribute;
}

}  // namespace imbrex::cuda
