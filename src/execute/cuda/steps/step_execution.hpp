// A plan that multiplies nothing, made ready on one rank's GPU: its steps, on one stream.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "execute/cuda/fused/kernel_execution.hpp"
#include "execute/cuda/lanes/joint_protocol.hpp"
#include "execute/cuda/steps/one_queue.hpp"
#include "execute/cuda/steps/step_list.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/cuda_heap.hpp"
#include "runtime/cuda/fault_pool.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

class StepExecution final : public KernelExecution {
 public:
  /// Collective. The device is selected; `heap`, `calls` and `faults` outlive the execution. The plan runs in steps,
  /// all its blocks are run, and it has that layout.
  StepExecution(World& world, runtime::CudaHeap& heap, StreamCalls& calls, runtime::FaultPool& faults, int device,
                std::shared_ptr<const Plan> plan, execute::HeapLayout layout, const CudaOptions& options);
  ~StepExecution() override;

  cudaStream_t stream() const override { return main_; }
  std::string_view kernel_name() const override;
  std::int64_t take_misfits(Misfits misfits) override;

 private:
  void launch(const Addresses& operands, cudaStream_t stream, Call call) override;
  std::vector<Span> spans() override { return {}; }
  std::string fault_message() const override;
  std::string late_name(int late) const override;

  void make_steps();
  void upload();
  void run(const SignalStep& step, const Addresses& operands, cudaStream_t stream) const;
  void run(const MoveStep& step, const Addresses& operands, cudaStream_t stream) const;
  void run(const BlockStep& step, const Addresses& operands, cudaStream_t stream) const;
  const WorkOnGpu& work() const { return *work_on_gpu(list_.launches.begin()->first); }

  runtime::CudaHeap& heap_;
  OneQueue ordered_;
  const Plan& plan_;
  execute::HeapLayout layout_;
  CudaOptions options_;
  int output_;  // the buffer that peers may write
  execute::Rows out_rows_;
  std::optional<runtime::CudaHeap::Place> place_;
  runtime::FaultPool::Owner own_fault_;
  RankTable table_;
  StepList list_;
  Protocol protocol_{};
  RawMemory signals_;  // of the table, for the kernels of signals
  const WaitEntry* waits_ = nullptr;
  const PostEntry* posts_ = nullptr;
  std::map<WorkKind, std::unique_ptr<BlockLaunches>> launches_;
  std::uint64_t epoch_;
  bool captured_ = false;
  cudaStream_t main_ = nullptr;
};

}  // namespace imbrex::cuda
