// Owners of memory that CUDA gave.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <memory>

#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

/// Memory of the device, or of the host where the device writes it.
struct DeviceFree {
  void operator()(void* p) const noexcept { cudaFree(p); }
};
struct HostFree {
  void operator()(void* p) const noexcept { cudaFreeHost(p); }
};

using DeviceMemory = std::unique_ptr<void, DeviceFree>;

/// Null for no bytes.
inline DeviceMemory device_memory(std::size_t bytes) {
  void* p = nullptr;
  if (bytes > 0) IMBREX_CUDA_TRY(cudaMalloc(&p, bytes));
  return DeviceMemory(p);
}

}  // namespace imbrex::cuda
