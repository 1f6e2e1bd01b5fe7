// The symmetric heap in GPU memory: every rank's allocation mapped into one flat range, base + rank * stride.
#pragma once

#include <cuda.h>

#include <vector>

#include "imbrex/world.hpp"
#include "runtime/heap.hpp"

namespace imbrex::runtime {

class CudaHeap final : public SymmetricHeap {
 public:
  /// Collective; the ranks' devices are selected. `bytes` per rank, the same on all, are taken and zeroed here;
  /// addresses are reserved for as much as a device has, so that the heap can grow. Between processes the allocations
  /// travel as file descriptors, none of which is left open. Throws Error(runtime_failure) naming the attribute that a
  /// device lacks, or the rank whose memory cannot be taken or mapped. `local`: no rank's memory is mapped by another
  /// one, and every rank's place in handle() is the own one.
  CudaHeap(World& world, int device, std::size_t bytes, bool local = false);
  ~CudaHeap() override;
  CudaHeap(const CudaHeap&) = delete;
  CudaHeap& operator=(const CudaHeap&) = delete;

  std::size_t allocate(std::size_t bytes) override;
  /// As allocate, of memory that was never used: peers may reach it at once, whatever was released before.
  std::size_t allocate_unused(std::size_t bytes);
  /// Collective: as allocate, but where the heap is full it takes more memory, at least as much as at first. Returns
  /// when peers can reach it.
  std::size_t allocate_or_grow(World& world, std::size_t bytes);
  /// Collective, while no rank's GPU touches the heap: gives memory back of which nothing is taken, but for the first
  /// piece. Addresses stay reserved.
  void give_back(World& world);
  /// Zeroes on the default stream; returns when that is done.
  void release(std::size_t offset) noexcept override;
  HeapHandle handle() const override { return handle_; }

  /// Whether `p` lies in this rank's part.
  bool holds(const void* p) const {
    const auto* first = handle_.at(handle_.rank, 0);
    return p >= first && p < first + extent_;
  }

 private:
  // One allocation on each rank, mapped at `offset` of its part.
  struct Piece {
    std::size_t offset = 0, bytes = 0;
    CUmemGenericAllocationHandle own = 0;
    int mapped = 0;  // ranks whose memory is mapped
  };

  std::size_t reserved() const { return extent_ * static_cast<std::size_t>(local_ ? 1 : ranks_); }
  void add_piece(World& world, std::size_t bytes);
  void take(World& world, Piece& piece);
  void share(World& world, Piece& piece);
  void map(Piece& piece, const std::vector<CUmemGenericAllocationHandle>& handles);
  void map_rank(Piece& piece, int rank, CUmemGenericAllocationHandle handle);
  void unmap(const Piece& piece) noexcept;
  void unmap() noexcept;

  bool by_files_;  // allocations travel as file descriptors
  bool local_;
  std::size_t extent_ = 0;  // bytes of addresses for a rank
  HeapHandle handle_;
  OffsetAllocator allocator_{0};
  int device_, ranks_;
  std::size_t granule_, first_bytes_;
  std::vector<Piece> pieces_;
};

}  // namespace imbrex::runtime
