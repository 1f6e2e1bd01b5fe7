#include "runtime/cuda/cuda_heap.hpp"

#include <fcntl.h>

#include <algorithm>
#include <mutex>

#include "runtime/cuda/driver.hpp"
#include "runtime/descriptor_exchange.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::runtime {
namespace {

using Handle = CUmemGenericAllocationHandle;

// NOTE: ranks that are threads unmap the same allocations at once, which corrupted the driver's own heap (a free within
// cuMemUnmap, driver 580.159). One at a time.
std::mutex mapping;

CUmemAllocationProp properties(int device, bool one_process) {
  CUmemAllocationProp p{};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device;
  p.requestedHandleTypes = one_process ? CU_MEM_HANDLE_TYPE_NONE : CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return p;
}

// NOTE: cudaIpc would do without these, but chooses the addresses of what it maps, and the heap is one flat range.
void expect_support(int device, bool one_process) {
  const auto expect = [&](CUdevice_attribute attribute, const char* name, const char* use) {
    if (device_attribute(device, attribute) == 0)
      throw Error(ErrorCode::runtime_failure, fmt::format("GPU {} does not support {} ({} is 0)", device, use, name));
  };
  expect(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
         "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "mapping memory at chosen addresses");
  if (!one_process)
    expect(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
           "CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
           "passing memory between processes as file descriptors; ranks can be threads");
}

// Whole granules of every rank's device: granules are powers of two.
std::size_t common_stride(World& world, int device, bool one_process, std::size_t bytes) {
  expect_support(device, one_process);
  const CUmemAllocationProp p = properties(device, one_process);
  std::size_t granule = 0;
  IMBREX_DRIVER_TRY(get_granularity, &granule, &p, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  const std::size_t own = (bytes + granule - 1) / granule * granule;
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

CudaHeap::CudaHeap(World& world, int device, std::size_t bytes)
    : one_process_(one_process(world)),
      handle_{nullptr, common_stride(world, device, one_process_, bytes), world.rank()},
      allocator_(handle_.stride),
      device_(device),
      ranks_(world.size()) {
  const CUmemAllocationProp p = properties(device, one_process_);
  const std::size_t stride = handle_.stride;
  IMBREX_DRIVER_TRY(create, &own_, stride, &p, 0);
  try {
    share(world);
    IMBREX_CUDA_TRY(cudaMemset(handle_.at(handle_.rank, 0), 0, stride));
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
    world.barrier();  // peers have mapped and zeroed before anybody writes
  } catch (...) {
    unmap();
    throw;
  }
}

CudaHeap::~CudaHeap() { unmap(); }

// Maps every rank's memory: threads hand each other the handles themselves, processes file descriptors.
void CudaHeap::share(World& world) {
  std::vector<Handle> handles(static_cast<std::size_t>(ranks_));
  if (one_process_) {
    world.all_gather(&own_, handles.data(), sizeof own_);
    map(handles);
    return;
  }
  int exported = -1;
  IMBREX_DRIVER_TRY(export_handle, &exported, own_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  FileDescriptor file(exported);
  fcntl(exported, F_SETFD, FD_CLOEXEC);
  Imports imports;
  {
    const std::vector<FileDescriptor> files = exchange_descriptors(world, file.get());
    for (int rank = 0; rank < ranks_; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (rank == handle_.rank) {
        handles[r] = own_;
        continue;
      }
      // The interface takes the number itself where a pointer to a handle is expected.
      void* descriptor = reinterpret_cast<void*>(static_cast<std::uintptr_t>(files[r].get()));
      IMBREX_DRIVER_TRY(import_handle, &handles[r], descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
      imports.handles.push_back(handles[r]);
    }
  }
  file.close();
  map(handles);
}

void CudaHeap::map(const std::vector<Handle>& handles) {
  const std::lock_guard guard(mapping);
  CUdeviceptr base = 0;
  IMBREX_DRIVER_TRY(reserve, &base, handle_.stride * handles.size(), 0, 0, 0);
  handle_.base = reinterpret_cast<std::byte*>(base);
  for (int rank = 0; rank < ranks_; ++rank) {
    try {
      map_rank(rank, handles[static_cast<std::size_t>(rank)]);
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("GPU {} of rank {} cannot map the memory of rank {}'s GPU; do they reach each other? {}",
                              device_, handle_.rank, rank, error.what()));
    }
  }
}

void CudaHeap::map_rank(int rank, Handle handle) {
  const auto address = reinterpret_cast<CUdeviceptr>(handle_.at(rank, 0));
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  IMBREX_DRIVER_TRY(map, address, handle_.stride, 0, handle, 0);
  ++mapped_;
  IMBREX_DRIVER_TRY(set_access, address, handle_.stride, &access, 1);
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
    throw Error(ErrorCode::runtime_failure,
                fmt::format("symmetric heap is full: {} bytes asked, {} left, {} of them in one piece; make the CUDA "
                            "executor, or the world's first operator, with more heap_bytes",
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
