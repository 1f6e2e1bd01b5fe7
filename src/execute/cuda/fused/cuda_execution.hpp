// A plan made ready on one rank's GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>

#include "execute/cuda/fused/epoch.hpp"
#include "execute/cuda/fused/kernel_execution.hpp"
#include "execute/cuda/products/gemm.hpp"
#include "execute/cuda/tables/translate.hpp"
#include "execute/cuda/times/step_times.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/cuda_heap.hpp"
#include "runtime/cuda/fault_pool.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

class CudaPool;

/// What runs concurrently with the kernel on its GPU, in the same epochs (lanes/lane_execution.hpp).
struct Beside {
  std::uint32_t readers = 0;  ///< of the epoch, in addition to the kernel's blocks
  int strays = 0;  ///< blocks that may have started before the kernel's, each where one of those should stand
};

class CudaExecution final : public KernelExecution {
 public:
  /// Collective. The device is selected; `heap`, `calls` and `faults` outlive the execution. `memory` is for the
  /// tables; what is no longer needed of it comes back.
  CudaExecution(World& world, runtime::CudaHeap& heap, StreamCalls& calls, runtime::FaultPool& faults, int device,
                std::unique_ptr<plan::TaskStream> tasks, Surveyed surveyed, TableMemory& memory,
                const CudaOptions& options, const Beside& beside = {});
  /// Not collective, and waits for no kernel: a plan that takes turns with others of the pool, which outlives it.
  /// `leading`: rank 0's tiles, by which the kernel is chosen. Throws Error(invalid_input) where copy engines take
  /// part, or no kernel runs the plan: the same on every rank.
  CudaExecution(CudaPool& pool, std::unique_ptr<plan::TaskStream> tasks, Surveyed surveyed, const TileCounts& leading,
                TableMemory& memory);
  /// One of a pool: nothing of it is under way any more.
  ~CudaExecution() override;

  cudaStream_t stream() const override { return main_; }
  std::string_view kernel_name() const override { return kernel_->name; }

  const GemmKernel& kernel() const { return *kernel_; }
  const RankTable& table() const { return table_; }

  /// Where it takes turns: its number in messages, and whether some graph may hold its calls.
  std::uint32_t number() const { return args_.protocol.turns.plan; }
  bool captured() const { return captured_; }

 private:
  friend class LaneExecution;  // whose compute lane it is

  CudaExecution(World& world, runtime::CudaHeap& heap, StreamCalls& calls, int device,
                std::unique_ptr<plan::TaskStream> tasks, Surveyed surveyed, const CudaOptions& options,
                const Beside& beside = {});

  void launch(const Addresses& operands, cudaStream_t stream, Call call) override;
  std::vector<Span> spans() override;

  void agree_on_kernel(TableMemory& memory);
  void take_pools_kernel(TableMemory& memory, const TileCounts& leading);
  RankTable table_for(const TileShape& shape, TableMemory& memory);
  void place_queues();
  /// Returns where a plan that takes turns has the posts to its rank's signals.
  const std::uint32_t* upload();
  void set_protocol();
  void prepare_skipping();
  void set_operands(const Addresses& operands);
  void copy(std::size_t step, const Addresses& operands, std::uint64_t copy_index, cudaStream_t stream);
  std::uint32_t blocks() const { return static_cast<std::uint32_t>(workers_ * kernel_->shape.cluster); }
  std::string fault_message() const override;
  std::string late_name(int late) const override;
  const CudaExecution& of_fault() const;
  std::byte* heap_at(std::size_t offset) const { return heap_.handle().at(world_.rank(), offset_ + offset); }
  std::byte* staged_out() const;

  runtime::CudaHeap& heap_;
  std::unique_ptr<plan::TaskStream> tasks_;
  const Plan& plan_;  // their frame, with tasks only where they are stored
  CudaOptions options_;
  Beside beside_;
  execute::HeapLayout layout_;
  TableSurvey survey_;
  CudaPool* pool_ = nullptr;  // where it takes turns
  std::uint64_t own_epoch_;
  std::uint64_t* epoch_ = &own_epoch_;             // of the next run
  std::optional<runtime::CudaHeap::Place> place_;  // its own part; null: in the pool's
  std::size_t offset_ = 0;                         // in the heap
  std::size_t state_offset_ = 0;                   // from its begin
  const GemmKernel* kernel_ = nullptr;
  int workers_ = 0;
  RankTable table_;
  RawMemory device_table_;
  std::byte* pools_memory_ = nullptr;      // used instead of device_table_
  std::byte* times_ = nullptr;             // of the table's tasks, after the table; timelines only
  double to_host_ = 0;                     // from the GPU's clock to the host's; timelines only
  std::unique_ptr<StepTimes> copy_times_;  // timelines only
  runtime::FaultPool::Owner own_fault_;    // null: the fault is the pool's
  GemmArgs args_{};
  TensorMaps maps_;
  RawMemory signal_posts_;
  SkipArgs skip_{};
  bool captured_ = false;
  bool skipping_ = false;  // every other epoch is skipped; see epoch.hpp
  execute::Rows out_rows_;
  bool copy_out_ = false;  // peers write the output, and the caller's is out of their reach, or has gaps
  cudaStream_t main_ = nullptr, copies_ = nullptr;
  cudaEvent_t begun_ = nullptr, copied_ = nullptr;
};

}  // namespace imbrex::cuda
