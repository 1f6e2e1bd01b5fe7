// The kernel of a step that posts and waits: one warp.
#pragma once

#include <cuda_runtime_api.h>

#include "execute/cuda/lanes/joint_protocol.hpp"

namespace imbrex::cuda {

/// What comes after it on the stream begins whatever becomes of its waits: where one was given up, the rank's State
/// says so, and it neither stores nor posts.
cudaError_t launch_signals(const JointArgs& args, cudaStream_t stream);

/// Loads the kernel.
cudaError_t load_signals();

}  // namespace imbrex::cuda
