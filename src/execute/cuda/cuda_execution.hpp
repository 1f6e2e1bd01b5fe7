// A plan made ready on one rank's GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>

#include "execute/cuda/gemm.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "execute/cuda/stream_execution.hpp"
#include "execute/cuda/translate.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/cuda_heap.hpp"

namespace imbrex::cuda {

class CudaExecution final : public StreamExecution {
 public:
  /// Collective. The device is selected; `heap` outlives the execution.
  CudaExecution(World& world, runtime::CudaHeap& heap, int device, const Plan& plan, const CudaOptions& options);
  ~CudaExecution() override;

  void enqueue(const Operands& operands) override;
  void finish() override;
  cudaStream_t stream() const override { return main_; }
  std::string_view kernel_name() const override { return kernel_->name; }

  const GemmKernel& kernel() const { return *kernel_; }
  const RankTable& table() const { return table_; }

 private:
  void choose_kernel();
  void upload();
  void start_counters();
  void set_operands(const Operands& operands);
  void copy(const CopyStep& step, const Operands& operands, std::uint64_t copy_index);
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
  RawMemory device_table_;
  std::unique_ptr<FaultRecord, HostFree> fault_;
  GemmArgs args_{};
  bool dead_ = false;
  bool copy_out_ = false;  // peers write the output, and the caller's is out of their reach
  cudaStream_t main_ = nullptr, copies_ = nullptr, rescue_ = nullptr;
  cudaEvent_t begun_ = nullptr, copied_ = nullptr;
};

}  // namespace imbrex::cuda
