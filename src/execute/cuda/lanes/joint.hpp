// The kernel of a joint: one warp.
#pragma once

#include <cuda_runtime_api.h>

#include "execute/cuda/lanes/joint_protocol.hpp"

namespace imbrex::cuda {

cudaError_t launch_joint(const JointArgs& args, cudaStream_t stream);

/// Loads the kernel.
cudaError_t load_joint();

}  // namespace imbrex::cuda
