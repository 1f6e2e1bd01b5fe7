#include "runtime/cuda/fault_pool.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>

#include "runtime/cuda/check.hpp"

namespace imbrex::runtime {
namespace {

constexpr std::size_t stride = 64, block_bytes = 4096;
static_assert(sizeof(device::Fault) <= stride);

}  // namespace

FaultPool::~FaultPool() {
  for (void* block : blocks_) cudaFreeHost(block);
}

FaultPool::Owner FaultPool::take() {
  if (free_.empty()) {
    void* block = nullptr;
    IMBREX_CUDA_TRY(cudaHostAlloc(&block, block_bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    blocks_.push_back(block);
    for (std::size_t at = 0; at < block_bytes; at += stride)
      free_.push_back(reinterpret_cast<device::Fault*>(static_cast<std::byte*>(block) + at));
  }
  device::Fault* fault = free_.back();
  free_.pop_back();
  std::memset(static_cast<void*>(fault), 0, sizeof *fault);
  return {fault, {this}};
}

device::Fault* FaultPool::on_device(device::Fault* fault) {
  void* address = nullptr;
  IMBREX_CUDA_TRY(cudaHostGetDevicePointer(&address, fault, 0));
  return static_cast<device::Fault*>(address);
}

}  // namespace imbrex::runtime
