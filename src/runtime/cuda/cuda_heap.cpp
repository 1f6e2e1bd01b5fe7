#include "runtime/cuda/cuda_heap.hpp"

#include <fcntl.h>

#include <algorithm>
#include <mutex>

#include "runtime/agreement.hpp"
#include "runtime/bootstrap/descriptor_exchange.hpp"
#include "runtime/cuda/asks_during_captures.hpp"
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

// The largest number that a rank tells; what fails on one rank fails on all.
std::size_t largest_of(World& world, const char* what, const std::function<std::size_t()>& tell) {
  const std::vector<std::int64_t> all =
      agree(world, [&] { return Terms(what).tell(static_cast<std::int64_t>(tell())); });
  return static_cast<std::size_t>(*std::max_element(all.begin(), all.end()));
}

// Granules are powers of two: the largest suits every rank's device.
std::size_t common_granule(World& world, int device, bool by_files) {
  return largest_of(world, "granules of a symmetric heap", [&] {
    expect_support(device, by_files);
    const CUmemAllocationProp p = properties(device, by_files);
    std::size_t granule = 0;
    IMBREX_DRIVER_TRY(get_granularity, &granule, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
    return granule;
  });
}

std::size_t up_to(std::size_t granule, std::size_t bytes) { return (bytes + granule - 1) / granule * granule; }

// Addresses for what the largest device has, or for the heap's first bytes where that is more.
std::size_t common_stride(World& world, std::size_t granule, std::size_t bytes) {
  return largest_of(world, "addresses of a symmetric heap", [&] {
    std::size_t left = 0, total = 0;
    IMBREX_CUDA_TRY(cudaMemGetInfo(&left, &total));
    return up_to(granule, std::max(bytes, total));
  });
}

// Handles to the memory of other processes, until it is mapped.
struct Imports {
  std::vector<Handle> handles;

  ~Imports() {
    const std::lock_guard guard(mapping);
    for (const Handle handle : handles) driver().release(handle);
  }
};

// A stream that waits for no other one.
class OwnStream {
 public:
  OwnStream() { IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~OwnStream() { cudaStreamDestroy(stream_); }
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

CudaHeap::CudaHeap(World& world, int device, std::size_t bytes, bool local, std::size_t limit)
    : by_files_(!local && !one_process(world)),
      local_(local),
      device_(device),
      ranks_(world.size()),
      limit_(limit),
      granule_(common_granule(world, device, by_files_)),
      first_bytes_(up_to(granule_, std::max<std::size_t>(bytes, 1))) {
  if (limit_ > 0) first_bytes_ = std::max(granule_, std::min(first_bytes_, limit_ / granule_ * granule_));
  expect_room(first_bytes_);
  extent_ = common_stride(world, granule_, first_bytes_);
  handle_ = {nullptr, local ? 0 : extent_, world.rank()};
  try {
    agree(world, [&] {
      CUdeviceptr base = 0;
      const std::lock_guard guard(mapping);
      IMBREX_DRIVER_TRY(reserve, &base, reserved(), 0, 0, 0);
      handle_.base = reinterpret_cast<std::byte*>(base);
      return Terms("the addresses of a symmetric heap");
    });
    add_piece(world, first_bytes_);
  } catch (...) {
    end();
    throw;
  }
}

CudaHeap::~CudaHeap() { end(); }

// Bytes that may still be taken.
std::size_t CudaHeap::room() const {
  std::size_t there = 0;
  for (const Piece& piece : pieces_) there += piece.bytes;
  const std::size_t most = limit_ > 0 ? limit_ : ~std::size_t{0};
  return most > there ? (most - there) / granule_ * granule_ : 0;
}

void CudaHeap::expect_room(std::size_t bytes) const {
  if (bytes <= room()) return;
  std::size_t there = 0;
  for (const Piece& piece : pieces_) there += piece.bytes;
  throw HeapLimit(fmt::format(
      "symmetric heap: {} bytes more are asked of each GPU, beside the {} that it has, and heap_limit is {}", bytes,
      there, limit_));
}

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
    back(world, {&pieces_.back()}, {});
  } catch (...) {
    pieces_.pop_back();
    throw;
  }
  allocator_.add(piece.offset, piece.bytes);
}

// All ranks get memory for the pieces, map everybody's, and put into their own what it begins with; or all fail and
// have none of it. The last agreement comes before any peer writes.
void CudaHeap::back(World& world, const std::vector<Piece*>& pieces, const std::function<void(CUstream)>& refill) {
  try {
    for (Piece* piece : pieces) share(world, *piece);
    agree(world, [&] {
      clear(pieces, refill);
      return Terms("new memory of a symmetric heap");
    });
  } catch (...) {
    for (Piece* piece : pieces) let_go(*piece);
    throw;
  }
}

// Threads hand each other the handles themselves, processes file descriptors.
void CudaHeap::share(World& world, Piece& piece) {
  FileDescriptor file;
  agree(world, [&] {
    file = take(piece);
    return Terms("memory of a symmetric heap").add("bytes", piece.bytes);
  });
  std::vector<Handle> handles(static_cast<std::size_t>(ranks_), piece.own);
  std::vector<FileDescriptor> files;
  if (by_files_)
    files = exchange_descriptors(world, file.get());
  else if (!local_)
    world.all_gather(&piece.own, handles.data(), sizeof piece.own);
  agree(world, [&] {
    if (by_files_)
      import(piece, files);
    else
      map(piece, handles);
    return Terms("a map of a symmetric heap");
  });
}

// Returns the file that stands for it, where one travels.
FileDescriptor CudaHeap::take(Piece& piece) const {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  const CUmemAllocationProp p = properties(device_, by_files_);
  try {
    IMBREX_DRIVER_TRY(create, &piece.own, piece.bytes, &p, 0);
  } catch (const Error& error) {
    piece.own = 0;
    std::size_t free = 0, all = 0;
    static_cast<void>(cudaMemGetInfo(&free, &all));
    throw Error(ErrorCode::runtime_failure,
                fmt::format("symmetric heap: rank {}'s GPU does not have {} bytes more: {} of {} are free; {}",
                            handle_.rank, piece.bytes, free, all, error.what()));
  }
  if (!by_files_) return {};
  int exported = -1;
  IMBREX_DRIVER_TRY(export_handle, &exported, piece.own, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  FileDescriptor file(exported);
  fcntl(file.get(), F_SETFD, FD_CLOEXEC);
  return file;
}

// Maps the memory that the ranks' files stand for.
void CudaHeap::import(Piece& piece, const std::vector<FileDescriptor>& files) {
  std::vector<Handle> handles(files.size(), piece.own);
  Imports imports;
  for (std::size_t rank = 0; rank < files.size(); ++rank) {
    if (static_cast<int>(rank) == handle_.rank) continue;
    // The interface takes the number itself where a pointer to a handle is expected.
    void* descriptor = reinterpret_cast<void*>(static_cast<std::uintptr_t>(files[rank].get()));
    IMBREX_DRIVER_TRY(import_handle, &handles[rank], descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    imports.handles.push_back(handles[rank]);
  }
  map(piece, handles);
}

void CudaHeap::map(Piece& piece, const std::vector<Handle>& handles) {
  const std::lock_guard guard(mapping);
  if (local_) return map_rank(piece, handle_.rank, piece.own);
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

// On a stream of its own, and also while another thread captures: a call may have to restore.
void CudaHeap::clear(const std::vector<Piece*>& pieces, const std::function<void(CUstream)>& refill) const {
  const cuda::AsksDuringCaptures beside_captures;
  const OwnStream stream;
  const auto at = [&](std::size_t offset) { return handle_.at(handle_.rank, offset); };
  for (const Piece* piece : pieces) {
    IMBREX_CUDA_TRY(cudaMemsetAsync(at(piece->offset), 0, piece->bytes, stream.get()));
    kept_.bring_back(piece->offset, piece->bytes, [&](std::size_t offset, std::span<const std::byte> from) {
      IMBREX_CUDA_TRY(cudaMemcpyAsync(at(offset), from.data(), from.size(), cudaMemcpyHostToDevice, stream.get()));
    });
  }
  if (refill) refill(stream.get());
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream.get()));
}

// The memory itself lives until the last rank has unmapped it.
void CudaHeap::let_go(Piece& piece) noexcept {
  const std::lock_guard guard(mapping);
  const auto base = reinterpret_cast<CUdeviceptr>(handle_.base);
  for (int r = 0; r < piece.mapped; ++r)
    driver().unmap(base + handle_.stride * static_cast<std::size_t>(r) + piece.offset, piece.bytes);
  if (piece.own != 0) driver().release(piece.own);
  piece.mapped = 0;
  piece.own = 0;
}

void CudaHeap::end() noexcept {
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  for (Piece& piece : pieces_) let_go(piece);
  pieces_.clear();
  const std::lock_guard guard(mapping);
  if (handle_.base != nullptr) driver().free_address(reinterpret_cast<CUdeviceptr>(handle_.base), reserved());
}

// Ranks that make the same calls have the same pieces free.
void CudaHeap::give_back(World& world) {
  agree(world, [&] {
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
    return Terms("a symmetric heap's memory to give back");
  });
  for (std::size_t i = pieces_.size(); i-- > 1;) {
    if (!allocator_.remove(pieces_[i].offset, pieces_[i].bytes)) continue;
    let_go(pieces_[i]);
    pieces_.erase(pieces_.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

bool CudaHeap::is_pinned(const Piece& piece) const {
  const auto first = pinned_.lower_bound(piece.offset);
  return first != pinned_.end() && *first < piece.offset + piece.bytes;
}

// Peers' posts may come after a rank's own kernels have ended: what is kept is read once all ranks are idle.
void CudaHeap::trim(World& world) {
  if (trimmed_) return;
  agree(world, [&] {
    IMBREX_CUDA_TRY(cudaSetDevice(device_));
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
    return Terms("a symmetric heap to trim");
  });
  std::vector<Piece*> gone;
  for (Piece& piece : pieces_)
    if (!is_pinned(piece)) gone.push_back(&piece);
  agree(world, [&] {
    for (const Piece* piece : gone)
      kept_.save(piece->offset, piece->bytes, [&](std::size_t offset, std::span<std::byte> to) {
        IMBREX_CUDA_TRY(cudaMemcpy(to.data(), handle_.at(handle_.rank, offset), to.size(), cudaMemcpyDeviceToHost));
      });
    return Terms("what a symmetric heap keeps").add("pieces", gone.size());
  });
  for (Piece* piece : gone) let_go(*piece);
  trimmed_ = true;
  world.barrier();  // the memory has gone once the last rank has unmapped it
}

void CudaHeap::restore(World& world, const std::function<void(CUstream)>& refill) {
  if (!trimmed_) return;
  std::vector<Piece*> gone;
  for (Piece& piece : pieces_)
    if (piece.own == 0) gone.push_back(&piece);
  back(world, gone, refill);
  trimmed_ = false;
  kept_.forget();
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
  const std::size_t needed = up_to(granule_, bytes);
  expect_room(needed);
  add_piece(world, std::max(needed, std::min(first_bytes_, room())));
  return allocate(bytes);
}

bool CudaHeap::is_mapped(std::size_t offset) const {
  return std::any_of(pieces_.begin(), pieces_.end(), [&](const Piece& piece) {
    return piece.mapped > 0 && offset >= piece.offset && offset < piece.offset + piece.bytes;
  });
}

void CudaHeap::release(std::size_t offset) noexcept {
  const auto bytes = allocator_.release(offset);
  if (!bytes) return;
  kept_.drop(offset, *bytes);
  pinned_.erase(offset);
  if (!is_mapped(offset)) return;  // new memory is zero
  cudaMemset(handle_.at(handle_.rank, offset), 0, *bytes);
  cudaDeviceSynchronize();
}

}  // namespace imbrex::runtime
