// The kernel of a replay's mark: one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

namespace imbrex::cuda {

/// Puts a node into a graph, after those that it follows, which adds 1 to a word of the host's memory that the device
/// writes.
cudaError_t add_mark(volatile std::uint64_t* word, cudaGraph_t graph, std::span<const cudaGraphNode_t> follows,
                     cudaGraphNode_t* node);

/// Loads the kernel.
cudaError_t load_mark();

}  // namespace imbrex::cuda
