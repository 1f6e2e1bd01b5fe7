#include "runtime/cuda/cuda_heap.hpp"

#include <fcntl.h>

#include <algorithm>
#include <mutex>

#include "runtime/bootstrap/descriptor_exchange.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::runtime {
namespace {

using Handle = CUmemGenericAllocationHandle;

// NOTE: ranks that are threads unmap the same allocations at once, which corrupted the driver's own heap (a free within
// cuMemUnmap, driver 580.159). One at a time.
std::mutex mapping;

CUmemAllocationProp properties(int device, bool by_files) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device;
  p.requestedHandleTypes = by_files ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
  return p;
}

// NOTE: cudaIpc would do without these, but chooses the addresses of what it maps, and the heap is one flat range.
void expect_support(int device, bool by_files) {
  const auto expect = [&](bool supported, const char* name, const char* use) {
    if (!supported)
      throw Error(ErrorCode::runtime_failure, fmt::format("GPU {} does not support {} ({} is 0)", device, use, name));
  };
  expect(gpu_of(device).maps_memory, "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
         "mapping memory at chosen addresses");
  if (by_files)
    expect(gpu_of(device).exports_memory, "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
           "passing memory between processes as file descriptors; ranks can be threads");
}

// Granules are powers of two: the largest suits every rank's device.
std::size_t common_granule(World& world, int device, bool by_files) {
  expect_support(device, by_files);
  const CUmemAllocationProp p = properties(device, by_files);
  std::size_t granule = 0;
  IMBREX_DRIVER_TRY(get_granularity, &granule, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  std::vector<std::size_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&granule, all.data(), sizeof granule);
  return *std::max_element(all.begin(), all.end());
}

std::size_t up_to(std::size_t granule, std::size_t bytes) { return (bytes + granule - 1) / granule * granule; }

// Addresses for what the largest device has, or for the heap's first bytes where that is more.
std::size_t common_stride(World& world, std::size_t granule, std::size_t bytes) {
  std::size_t left = 0, total = 0;
  IMBREX_CUDA_TRY(cudaMemGetInfo(&left, &total));
  const std::size_t own = up_to(granule, std::max(bytes, total));
  std::vector<std::size_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  return *std::max_element(all.begin(), all.end());
}

// Handles to the memory of other processes, until it is mapped.
struct Imports {
  std::vector<Handle> handles;

  ~Imports() {
    const std::lock_guard guard(mapping);
    for (const Handle handle : handles) driver().release(handle);
  }
};

}  // namespace

CudaHeap::CudaHeap(World& world, int device, std::size_t bytes, bool local)
    : by_files_(!local && !one_process(world)), local_(local), device_(device), ranks_(world.size()) {
  granule_ = common_granule(world, device, by_files_);
  first_bytes_ = up_to(granule_, std::max<std::size_t>(bytes, 1));
  extent_ = common_stride(world, granule_, first_bytes_);
  handle_ = {nullptr, local ? 0 : extent_, world.rank()};
  CUdeviceptr base = 0;
  {
    const std::lock_guard guard(mapping);
    IMBREX_DRIVER_TRY(reserve, &base, reserved(), 0, 0, 0);
  }
  handle_.base = reinterpret_cast<std::byte*>(base);
  try {
    add_piece(world, first_bytes_);
  } catch (...) {
    unmap();
    throw;
  }
}

CudaHeap::~CudaHeap() { unmap(); }

// NOTE: a granule stays free between pieces, so that nothing lies in two of them: not every operation of CUDA takes
// memory of two allocations as one.
void CudaHeap::add_piece(World& world, std::size_t bytes) {
  Piece piece;
  piece.offset = pieces_.empty() ? 0 : pieces_.back().offset + pieces_.back().bytes + granule_;
  piece.bytes = up_to(granule_, bytes);
  if (piece.offset + piece.bytes > extent_)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("symmetric heap is full: it has {} bytes, and {} more are more than a GPU has",
                            piece.offset, piece.bytes));
  pieces_.push_back(piece);
  try {
    take(world, pieces_.back());
  } catch (...) {
    // Nothing is mapped yet: what this rank did get is for others, and the addresses are for the next piece.
    if (pieces_.back().own != 0) {
      const std::lock_guard guard(mapping);
      driver().release(pieces_.back().own);
    }
    pieces_.pop_back();
    throw;
  }
  share(world, pieces_.back());
  IMBREX_CUDA_TRY(cudaMemset(handle_.at(handle_.rank, piece.offset), 0, piece.bytes));
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  allocator_.add(piece.offset, piece.bytes);
  world.barrier();  // peers have mapped and zeroed before anybody writes
}

// All ranks get their memory, or all fail.
void CudaHeap::take(World& world, Piece& piece) {
  const CUmemAllocationProp p = properties(device_, by_files_);
  std::string why;
  try {
    IMBREX_DRIVER_TRY(create, &piece.own, piece.bytes, &p, 0);
  } catch (const Error& error) {
    why = error.what();
    piece.own = 0;
  }
  const bool good = why.empty();
  std::vector<char> all(static_cast<std::size_t>(ranks_));
  world.all_gather(&good, all.data(), sizeof good);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] == 0)
      throw Error(ErrorCode::runtime_failure,
                  fmt::format("symmetric heap: rank {}'s GPU does not have {} bytes more{}{}", rank, piece.bytes,
                              why.empty() ? "" : ": ", why));
}

// Maps every rank's memory: threads hand each other the handles themselves, processes file descriptors.
void CudaHeap::share(World& world, Piece& piece) {
  std::vector<Handle> handles(static_cast<std::size_t>(ranks_));
  if (local_) {
    const std::lock_guard guard(mapping);
    return map_rank(piece, handle_.rank, piece.own);
  }
  if (!by_files_) {
    world.all_gather(&piece.own, handles.data(), sizeof piece.own);
    map(piece, handles);
    return;
  }
  int exported = -1;
  IMBREX_DRIVER_TRY(export_handle, &exported, piece.own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  FileDescriptor file(exported);
  fcntl(file.get(), F_SETFD, FD_CLOEXEC);
  Imports imports;
  {
    const std::vector<FileDescriptor> files = exchange_descriptors(world, file.get());
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (rank == handle_.rank) {
        handles[r] = piece.own;
        continue;
      }
      // The interface takes the number itself where a pointer to a handle is expected.
      void* descriptor = reinterpret_cast<void*>(static_cast<std::uintptr_t>(files[r].get()));
      IMBREX_DRIVER_TRY(import_handle, &handles[r], descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      imports.handles.push_back(handles[r]);
    }
  }
  file.close();
  map(piece, handles);
}

void CudaHeap::map(Piece& piece, const std::vector<Handle>& handles) {
  const std::lock_guard guard(mapping);
  for (int rank = 0; rank < ranks_; ++rank) {
    try {
      map_rank(piece, rank, handles[static_cast<std::size_t>(rank)]);
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("GPU {} of rank {} cannot map the memory of rank {}'s GPU; do they reach each other? {}",
                              device_, handle_.rank, rank, error.what()));
    }
  }
}

void CudaHeap::map_rank(Piece& piece, int rank, Handle handle) {
  const auto address = reinterpret_cast<CUdeviceptr>(handle_.at(rank, piece.offset));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  IMBREX_DRIVER_TRY(map, address, piece.bytes, 0, handle, 0);
  ++piece.mapped;
  IMBREX_DRIVER_TRY(set_access, address, piece.bytes, &access, 1);
}

void CudaHeap::unmap(const Piece& piece) noexcept {
  const auto base = reinterpret_cast<CUdeviceptr>(handle_.base);
  for (int r = 0; r < piece.mapped; ++r)
    driver().unmap(base + handle_.stride * static_cast<std::size_t>(r) + piece.offset, piece.bytes);
}

// The memory itself lives until the last rank has unmapped it.
void CudaHeap::unmap() noexcept {
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  const std::lock_guard guard(mapping);
  for (const Piece& piece : pieces_) unmap(piece);
  if (handle_.base != nullptr) driver().free_address(reinterpret_cast<CUdeviceptr>(handle_.base), reserved());
  for (const Piece& piece : pieces_)
    if (piece.own != 0) driver().release(piece.own);
  pieces_.clear();
}

// Ranks that make the same calls have the same pieces free.
void CudaHeap::give_back(World& world) {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  world.barrier();
  const std::lock_guard guard(mapping);
  for (std::size_t i = pieces_.size(); i-- > 1;) {
    const Piece piece = pieces_[i];
    if (!allocator_.remove(piece.offset, piece.bytes)) continue;
    unmap(piece);
    driver().release(piece.own);
    pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

std::size_t CudaHeap::allocate(std::size_t bytes) {
  const auto offset = allocator_.allocate(bytes);
  if (!offset)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("symmetric heap is full: {} bytes asked, {} left, {} of them in one piece", bytes,
                            allocator_.free_bytes(), allocator_.largest_free()));
  return *offset;
}

std::size_t CudaHeap::allocate_unused(std::size_t bytes) {
  const auto offset = allocator_.allocate_unused(bytes);
  if (!offset)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("symmetric heap is full: {} never used bytes asked, {} of those left; give it more "
                            "by heap_bytes",
                            bytes, allocator_.unused_bytes()));
  return *offset;
}

std::size_t CudaHeap::allocate_or_grow(World& world, std::size_t bytes) {
  if (const auto offset = allocator_.allocate(bytes)) return *offset;
  add_piece(world, std::max(first_bytes_, bytes));
  return allocate(bytes);
}

void CudaHeap::release(std::size_t offset) noexcept {
  const auto bytes = allocator_.release(offset);
  if (!bytes) return;
  cudaMemset(handle_.at(handle_.rank, offset), 0, *bytes);
  cudaDeviceSynchronize();
}

}  // namespace imbrex::runtime
