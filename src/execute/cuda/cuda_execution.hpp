// A plan made ready on one rank's GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "execute/cuda/gemm.hpp"
#include "execute/cuda/translate.hpp"
#include "imbrex/execute.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/cuda_heap.hpp"

namespace imbrex::cuda {

/// Memory of the device, or of the host where the device writes it.
struct DeviceFree {
  void operator()(void* p) const noexcept { cudaFree(p); }
};
struct HostFree {
  void operator()(void* p) const noexcept { cudaFreeHost(p); }
};

class CudaExecution final : public Execution {
 public:
  /// Collective. The device is selected; `heap` outlives the execution.
  CudaExecution(World& world, runtime::CudaHeap& heap, int device, const Plan& plan, const CudaOptions& options);
  ~CudaExecution() override;

  Report run(const Operands& operands) override;

  /// The parts of run, for callers that queue several epochs: enqueue puts one epoch on stream(), finish waits until
  /// all are done and throws as run does.
  void enqueue(const Operands& operands);
  void finish();
  cudaStream_t stream() const { return main_; }

  const GemmKernel& kernel() const { return *kernel_; }
  const RankTable& table() const { return table_; }

 private:
  void choose_kernel();
  void upload();
  void start_counters();
  void set_operands(const Operands& operands);
  void copy(const CopyStep& step, const Operands& operands, std::uint64_t copy_index);
  void hold_back() const;
  [[noreturn]] void fail(const std::string& message);
  [[noreturn]] void throw_fault();
  std::byte* heap_at(std::size_t offset) const { return heap_.handle().at(world_.rank(), heap_offset_ + offset); }

  World& world_;
  runtime::CudaHeap& heap_;
  int device_;
  Plan plan_;
  CudaOptions options_;
  HeapLayout layout_;
  std::uint64_t epoch_;  // of the next run
  std::size_t heap_offset_ = 0, state_offset_ = 0;
  const GemmKernel* kernel_ = nullptr;
  int workers_ = 0;
  RankTable table_;
  std::unique_ptr<void, DeviceFree> device_table_;
  std::unique_ptr<FaultRecord, HostFree> fault_;
  GemmArgs args_{};
  bool dead_ = false;
  cudaStream_t main_ = nullptr, copies_ = nullptr, rescue_ = nullptr;
  cudaEvent_t begun_ = nullptr, copied_ = nullptr;
};

}  // namespace imbrex::cuda
