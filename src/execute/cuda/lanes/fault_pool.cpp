#include "execute/cuda/lanes/fault_pool.hpp"

#include <cstddef>
#include <cstring>

#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

constexpr std::size_t stride = 64, block_bytes = 4096;
static_assert(sizeof(FaultRecord) <= stride);

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
      free_.push_back(reinterpret_cast<FaultRecord*>(static_cast<std::byte*>(block) + at));
  }
  FaultRecord* record = free_.back();
  free_.pop_back();
  std::memset(static_cast<void*>(record), 0, sizeof *record);
  return {record, {this}};
}

}  // namespace imbrex::cuda
