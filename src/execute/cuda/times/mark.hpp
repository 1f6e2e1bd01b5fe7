// The kernel of a replay's mark: one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace imbrex::cuda {

/// Adds 1 to a word of the host's memory that the device writes, behind what the stream has before.
cudaError_t launch_mark(volatile std::uint64_t* word, cudaStream_t stream);

/// Loads the kernel.
cudaError_t load_mark();

}  // namespace imbrex::cuda
