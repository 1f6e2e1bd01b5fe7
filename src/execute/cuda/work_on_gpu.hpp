// What the CUDA executor makes of kinds of work: the list of those that it runs. docs/dev/architecture.md says how to
// add one. Built everywhere: what is refused, is told without a GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::runtime {
class CudaHeap;
class FaultPool;
}  // namespace imbrex::runtime

namespace imbrex::cuda {

class StreamCalls;

/// What an execution is made on. The device is selected; all but `options` outlives the execution.
struct ExecutionPlace {
  World& world;
  runtime::CudaHeap& heap;
  StreamCalls& calls;
  runtime::FaultPool& faults;
  int device;
  const CudaOptions& options;
};

/// Blocks of one kind among the steps of a plan with library queues, on one rank's GPU.
class BlockSteps {
 public:
  virtual ~BlockSteps() = default;

  /// Queues a block that WorkOnGpu::refusal_of_step takes; `to` is where its first store begins.
  virtual void launch(const Block& block, void* to, const Addresses& operands, CudaStream stream) = 0;

  /// As Execution::take_misfits, of blocks that are over or on `stream`.
  virtual std::int64_t take_misfits(Misfits, CudaStream) { return 0; }
};

/// Without CUDA, what makes something is null.
struct WorkOnGpu {
  WorkKind kind;

  /// A plan of compute queues that hold no other work has an execution of its own. Throws Error(invalid_input) for what
  /// that does not run.
  void (*expect_runs)(const Plan& plan) = nullptr;
  /// Collective.
  std::unique_ptr<Execution> (*make_execution)(const ExecutionPlace& place, const Plan& plan) = nullptr;

  /// Why a block is no step of `rank`'s library queues; empty if it is one.
  std::string (*refusal_of_step)(const Plan& plan, int rank, const Block& block) = nullptr;
  /// Takes memory, and loads the kernels. The device is selected. `pitch`: elements from row to row of what the blocks
  /// store to.
  std::unique_ptr<BlockSteps> (*make_steps)(const Plan& plan, int rank, std::int64_t pitch) = nullptr;
};

/// Null for a kind that the executor does not run.
const WorkOnGpu* work_on_gpu(WorkKind kind);

/// What makes the plan's execution, where it holds blocks of one kind in compute queues and no other queues or blocks;
/// else null.
const WorkOnGpu* only_work(const Plan& plan);

}  // namespace imbrex::cuda
