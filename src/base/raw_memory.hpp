// Owners of memory that CUDA gave, for code that knows CUDA (runtime/cuda/device_memory.hpp is for code that does not).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "base/cuda_check.hpp"

namespace imbrex::cuda {

/// Memory of the device, or of the host where the device writes it.
struct DeviceFree {
  void operator()(void* p) const noexcept { cudaFree(p); }
};
struct HostFree {
  void operator()(void* p) const noexcept { cudaFreeHost(p); }
};

using RawMemory = std::unique_ptr<void, DeviceFree>;

/// So many bytes of the current device, more than none. Throws Error(runtime_failure) that says what is there where
/// that is less.
inline void* device_bytes(std::size_t bytes) {
  void* p = nullptr;
  const cudaError_t status = cudaMalloc(&p, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    std::size_t left = 0, all = 0;
    IMBREX_CUDA_TRY(cudaMemGetInfo(&left, &all));
    throw Error(ErrorCode::runtime_failure,
                fmt::format("{} bytes of GPU memory are needed, and {} of {} are left", bytes, left, all));
  }
  IMBREX_CUDA_TRY(status);
  return p;
}

/// Null for no bytes.
inline RawMemory raw_memory(std::size_t bytes) { return RawMemory(bytes > 0 ? device_bytes(bytes) : nullptr); }

/// Copies from the host, or fills. Streams that do not wait for the default one see it, too, when this returns: CUDA
/// alone may return from a copy of pageable memory before its last part has arrived, and from a fill before it began.
inline void upload(void* to, const void* from, std::size_t bytes) {
  IMBREX_CUDA_TRY(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
  IMBREX_CUDA_TRY(cudaStreamSynchronize(cudaStreamLegacy));
}
inline void fill(void* memory, int byte, std::size_t bytes) {
  IMBREX_CUDA_TRY(cudaMemset(memory, byte, bytes));
  IMBREX_CUDA_TRY(cudaStreamSynchronize(cudaStreamLegacy));
}

}  // namespace imbrex::cuda
