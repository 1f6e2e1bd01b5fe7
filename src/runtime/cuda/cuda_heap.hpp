// The symmetric heap in GPU memory: every rank's allocation mapped into one flat range, base + rank * stride.
#pragma once

#include <cuda.h>

#include <functional>
#include <set>
#include <vector>

#include "imbrex/world.hpp"
#include "runtime/heap.hpp"
#include "runtime/kept_ranges.hpp"
#include "runtime/memory.hpp"

namespace imbrex::runtime {

class CudaHeap final : public SymmetricHeap {
 public:
  /// Collective; the ranks' devices are selected. `bytes` per rank, the same on all, are taken and zeroed here;
  /// addresses are reserved for as much as a device has, so that the heap can grow. Between processes the allocations
  /// travel as file descriptors, none of which is left open. Throws Error(runtime_failure) naming the attribute that a
  /// device lacks, or the rank whose memory cannot be taken or mapped. `local`: no rank's memory is mapped by another
  /// one, and every rank's place in handle() is the own one. `limit`: bytes that a rank takes at most, less what is no
  /// whole granule of memory; 0: as many as there are. At first it takes no more than that.
  CudaHeap(World& world, int device, std::size_t bytes, bool local = false, std::size_t limit = 0);
  ~CudaHeap() override;
  CudaHeap(const CudaHeap&) = delete;
  CudaHeap& operator=(const CudaHeap&) = delete;

  std::size_t allocate(std::size_t bytes) override;
  /// As allocate, of memory that was never used: peers may reach it at once, whatever was released before.
  std::size_t allocate_unused(std::size_t bytes);
  /// Collective: as allocate, but where the heap is full it takes more memory, as much as at first or more. Returns
  /// when peers can reach it. Throws HeapLimit, on every rank, before anything is taken, and Error(runtime_failure)
  /// where one rank gets none: then every rank has what it had.
  std::size_t allocate_or_grow(World& world, std::size_t bytes);
  /// Collective, while no rank's GPU touches the heap: gives memory back of which nothing is taken, except the first
  /// piece. Addresses stay reserved.
  void give_back(World& world);

  /// Part of an allocation, until that is released: what lies there outlives a trim.
  void keep(std::size_t offset, std::size_t bytes) { kept_.add(offset, bytes); }
  /// An allocation, until it is released: a trim leaves the memory that it lies in.
  void pin(std::size_t offset) { pinned_.insert(offset); }

  /// Collective, while no rank has calls under way: gives all memory back except what is pinned, on every rank.
  /// Addresses stay reserved, and allocations theirs; nothing may touch them until the restore.
  void trim(World& world);
  bool trimmed() const { return trimmed_; }
  /// Collective: takes new memory at the same addresses. It is zero, except what was kept, and where `refill` has put
  /// something else on the stream that it is given. Returns when all ranks are so far. Throws Error(runtime_failure),
  /// on every rank, where one rank gets no memory; then the heap is as trimmed as it was.
  void restore(World& world, const std::function<void(CUstream)>& refill = {});

  /// Zeroes on the default stream; returns when that is done.
  void release(std::size_t offset) noexcept override;
  HeapHandle handle() const override { return handle_; }

  /// Owns an allocation.
  struct Place {
    Place(CudaHeap& of, std::size_t at) : heap(of), offset(at) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { heap.release(offset); }

    CudaHeap& heap;
    std::size_t offset;
  };

  /// Whether `p` lies in this rank's part.
  bool holds(const void* p) const {
    const auto* first = handle_.at(handle_.rank, 0);
    return p >= first && p < first + extent_;
  }

 private:
  // One allocation on each rank, mapped at `offset` of its part.
  struct Piece {
    std::size_t offset = 0, bytes = 0;
    CUmemGenericAllocationHandle own = 0;  // 0: given back by a trim
    int mapped = 0;                        // ranks whose memory is mapped
  };

  std::size_t reserved() const { return extent_ * static_cast<std::size_t>(local_ ? 1 : ranks_); }
  std::size_t room() const;
  void expect_room(std::size_t bytes) const;
  void add_piece(World& world, std::size_t bytes);
  void back(World& world, const std::vector<Piece*>& pieces, const std::function<void(CUstream)>& refill);
  void share(World& world, Piece& piece);
  FileDescriptor take(Piece& piece) const;
  void import(Piece& piece, const std::vector<FileDescriptor>& files);
  void map(Piece& piece, const std::vector<CUmemGenericAllocationHandle>& handles);
  void map_rank(Piece& piece, int rank, CUmemGenericAllocationHandle handle);
  void clear(const std::vector<Piece*>& pieces, const std::function<void(CUstream)>& refill) const;
  bool is_pinned(const Piece& piece) const;
  bool is_mapped(std::size_t offset) const;
  void let_go(Piece& piece) noexcept;
  void end() noexcept;

  bool by_files_;  // allocations travel as file descriptors
  bool local_;
  std::size_t extent_ = 0;  // bytes of addresses for a rank
  HeapHandle handle_;
  OffsetAllocator allocator_{0};
  int device_, ranks_;
  std::size_t limit_;
  std::size_t granule_, first_bytes_;
  std::vector<Piece> pieces_;
  KeptRanges kept_;
  std::set<std::size_t> pinned_;  // allocations
  bool trimmed_ = false;
};

}  // namespace imbrex::runtime
