// The symmetric heap in GPU memory: every rank's allocation mapped into one flat range, base + rank * stride.
#pragma once

#include <cuda.h>

#include <vector>

#include "imbrex/world.hpp"
#include "runtime/heap.hpp"

namespace imbrex::runtime {

class CudaHeap final : public SymmetricHeap {
 public:
  /// Collective; the ranks' devices are selected. `bytes` per rank, the same on all, are taken and zeroed here. Between
  /// processes the allocations travel as file descriptors, none of which is left open. Throws Error(runtime_failure)
  /// naming the attribute that a device lacks, or the rank whose memory cannot be mapped.
  CudaHeap(World& world, int device, std::size_t bytes);
  ~CudaHeap() override;
  CudaHeap(const CudaHeap&) = delete;
  CudaHeap& operator=(const CudaHeap&) = delete;

  std::size_t allocate(std::size_t bytes) override;
  /// Zeroes on the default stream; returns when that is done.
  void release(std::size_t offset) noexcept override;
  HeapHandle handle() const override { return handle_; }

  /// Whether `p` lies in this rank's part.
  bool holds(const void* p) const {
    const auto* first = handle_.at(handle_.rank, 0);
    return p >= first && p < first + handle_.stride;
  }

 private:
  void share(World& world);
  void map(const std::vector<CUmemGenericAllocationHandle>& handles);
  void map_rank(int rank, CUmemGenericAllocationHandle handle);
  void unmap() noexcept;

  bool one_process_;  // ranks are threads
  HeapHandle handle_;
  OffsetAllocator allocator_;
  int device_, ranks_;
  int mapped_ = 0;  // ranks whose memory is mapped
  CUmemGenericAllocationHandle own_ = 0;
};

}  // namespace imbrex::runtime
