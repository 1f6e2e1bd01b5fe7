// Small arrays of the host into a GPU's memory, as part of a stream's work.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace imbrex::embedding {

/// Queues it on the stream: `data` may change at once, a captured stream keeps what it was, and nothing waits for what
/// else runs on the GPU, as copies from the host's memory may. Both addresses and `bytes` are multiples of 4.
cudaError_t put(void* to, const void* data, std::size_t bytes, cudaStream_t stream);

/// Loads its kernel.
cudaError_t load_put();

}  // namespace imbrex::embedding
