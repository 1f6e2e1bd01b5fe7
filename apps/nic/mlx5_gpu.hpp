// What a NIC's queues need of CUDA's driver where the heap lies on a GPU: doorbells that kernels reach, memory that the
// NIC reaches, and whether kernels see the NIC's writes in their order. libcuda is found at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace imbrex::shmem::mlx5 {

/// What the driver says of writes that a NIC makes to the GPU's memory.
struct WritesOrdering {
  int scope;            ///< CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: 0 none, 100 this GPU, 200 all
  bool host_may_flush;  ///< cuFlushGPUDirectRDMAWrites is there
  bool waits_need_flush() const { return scope < 100; }
};

class NicGpu {
 public:
  /// `number`: CUDA's. Throws Error(runtime_failure) naming call, result and GPU.
  NicGpu(int number, const std::string& library);
  ~NicGpu();
  NicGpu(const NicGpu&) = delete;
  NicGpu& operator=(const NicGpu&) = delete;

  WritesOrdering writes_ordering() const;

  /// Throws Error(runtime_failure) where a kernel that saw a signal might not see its data. The flush that would help
  /// is the host's, or a read by the NIC; kernels' waits make neither.
  void expect_ordered_writes() const;

  /// A NIC's register as kernels reach it, until the destructor. Once a register.
  std::uint64_t* map_register(void* address, std::size_t bytes);

  /// A file that stands for whole pages of the GPU's memory, for NICs that do not take its addresses. The caller closes
  /// it.
  int dma_buffer(const void* begin, std::size_t bytes) const;

 private:
  struct Driver;
  std::unique_ptr<Driver> driver_;
};

}  // namespace imbrex::shmem::mlx5
