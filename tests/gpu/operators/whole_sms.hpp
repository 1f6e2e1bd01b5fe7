// A kernel of somebody else's that needs SMs of its own, all at once, as NCCL's do.
#pragma once

#include <cuda_runtime_api.h>

namespace imbrex::test {

/// What the blocks of a launch share, in the GPU's memory; zero before it.
struct Meeting {
  unsigned arrived;  ///< blocks that have begun
  unsigned left;     ///< blocks that waited longer than the limit for the others
};

/// Blocks that each take all shared memory of an SM, so that no other block runs there, and wait for one another: for
/// `limit_ns` at most. `bytes`: from load_whole_sms.
cudaError_t launch_whole_sms(Meeting* meeting, unsigned blocks, int bytes, unsigned long long limit_ns,
                             cudaStream_t stream);

/// Loads the kernel for the current GPU, and says how many bytes a block takes.
cudaError_t load_whole_sms(int& bytes);

}  // namespace imbrex::test
