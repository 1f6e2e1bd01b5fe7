#include "runtime/cuda/cuda_heap.hpp"

#include <unistd.h>

#include <mutex>

#include "runtime/cuda/driver.hpp"

namespace imbrex::runtime {
namespace {

// NOTE: ranks that are threads unmap the same allocations at once, which corrupted the driver's own heap (a free within
// cuMemUnmap, driver 580.159). One at a time.
std::mutex mapping;

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device;
  // So that a peer process can map it, when share_handles learns to pass descriptors.
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}

// Handles that this rank may map, by rank. One process: the handles themselves.
std::vector<CUmemGenericAllocationHandle> share_handles(World& world, CUmemGenericAllocationHandle own) {
  struct Offer {
    std::int64_t process;
    CUmemGenericAllocationHandle handle;
  };
  const Offer mine{getpid(), own};
  std::vector<Offer> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&mine, all.data(), sizeof mine);
  std::vector<CUmemGenericAllocationHandle> handles;
  for (const Offer& offer : all) {
    if (offer.process != mine.process)
      throw Error(ErrorCode::runtime_failure,
                  "the CUDA heap serves ranks that are threads of one process; passing memory between processes is not "
                  "supported yet");
    handles.push_back(offer.handle);
  }
  return handles;
}

std::size_t whole_granules(std::size_t bytes, int device) {
  const CUmemAllocationProp p = properties(device);
  std::size_t granule = 0;
  IMBREX_DRIVER_TRY(get_granularity, &granule, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  return (bytes + granule - 1) / granule * granule;
}

}  // namespace

CudaHeap::CudaHeap(World& world, int device, std::size_t bytes)
    : handle_{nullptr, whole_granules(bytes, device), world.rank()},
      allocator_(handle_.stride),
      device_(device),
      ranks_(world.size()) {
  const CUmemAllocationProp p = properties(device);
  const std::size_t stride = handle_.stride;
  IMBREX_DRIVER_TRY(create, &own_, stride, &p, 0);
  try {
    const auto handles = share_handles(world, own_);
    map(handles);
    IMBREX_CUDA_TRY(cudaMemset(handle_.at(handle_.rank, 0), 0, stride));
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
    world.barrier();  // peers have mapped and zeroed before anybody writes
  } catch (...) {
    unmap();
    throw;
  }
}

CudaHeap::~CudaHeap() { unmap(); }

void CudaHeap::map(const std::vector<CUmemGenericAllocationHandle>& handles) {
  const std::lock_guard guard(mapping);
  const std::size_t stride = handle_.stride;
  CUdeviceptr base = 0;
  IMBREX_DRIVER_TRY(reserve, &base, stride * handles.size(), 0, 0, 0);
  handle_.base = reinterpret_cast<std::byte*>(base);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  for (const auto handle : handles) {
    IMBREX_DRIVER_TRY(map, base + stride * static_cast<std::size_t>(mapped_), stride, 0, handle, 0);
    ++mapped_;
  }
  IMBREX_DRIVER_TRY(set_access, base, stride * handles.size(), &access, 1);
}

void CudaHeap::unmap() noexcept {
  cudaSetDevice(device_);
  cudaDeviceSynchronize();
  const std::lock_guard guard(mapping);
  const auto base = reinterpret_cast<CUdeviceptr>(handle_.base);
  for (int r = 0; r < mapped_; ++r) driver().unmap(base + handle_.stride * static_cast<std::size_t>(r), handle_.stride);
  if (base != 0) driver().free_address(base, handle_.stride * static_cast<std::size_t>(ranks_));
  // The memory itself lives until the last rank has unmapped it.
  if (own_ != 0) driver().release(own_);
  mapped_ = 0;
  own_ = 0;
}

std::size_t CudaHeap::allocate(std::size_t bytes) {
  const auto offset = allocator_.allocate(bytes);
  if (!offset)
    throw Error(ErrorCode::runtime_failure, fmt::format("symmetric heap is full: {} bytes asked, {} left, {} of them "
                                                        "in one piece; make the CUDA executor with more "
                                                        "heap_bytes",
                                                        bytes, allocator_.free_bytes(), allocator_.largest_free()));
  return *offset;
}

void CudaHeap::release(std::size_t offset) noexcept {
  const auto bytes = allocator_.release(offset);
  if (!bytes) return;
  cudaMemset(handle_.at(handle_.rank, offset), 0, *bytes);
  cudaDeviceSynchronize();
}

}  // namespace imbrex::runtime
