// Memory of the host that a GPU reaches.
#pragma once

#include <cstddef>
#include <memory>

namespace imbrex::shmem::ring {

/// Pinned, at the same address for host and GPU, zeroed. Throws Error(runtime_failure) naming the call that failed,
/// Error(invalid_input) in a build without CUDA.
std::shared_ptr<std::byte> pinned_memory(int gpu, std::size_t bytes);

}  // namespace imbrex::shmem::ring
