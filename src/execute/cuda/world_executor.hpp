// The executor of a world's operators on GPUs, for code that includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "execute/cuda/pooled_plans.hpp"
#include "imbrex/advanced/execute.hpp"

namespace imbrex::runtime {
class StreamOrder;
}

namespace imbrex::cuda {

/// What operators need of it beside executions of one plan.
class WorldExecutor : public Executor {
 public:
  /// Collective, all or none: memory, kernels and communicators for the plans that `survey` names, of one type, and for
  /// smaller ones. All plans of an executor that are prepared so work in one memory, which is as large as the largest
  /// needs. Where there is too little, `drop` is called on every rank: it ends all executions that were prepared, which
  /// are then prepared anew; graphs that hold calls of theirs stay good. Tables of plans have `table_bytes` at least,
  /// of all that the executor runs. The executor outlives what is returned.
  /// Throws as prepare; then the memory is as it was, and what was dropped can be prepared again.
  virtual std::unique_ptr<PooledPlans> pool(const std::function<std::vector<PlanToRun>()>& survey,
                                            std::size_t table_bytes, const std::function<void()>& drop) = 0;

  /// This rank's memory at a place that a call said of its output (runtime::Calls::expect_place), but 0.
  virtual void* output_at(std::uint64_t place) const = 0;

  /// Whether some call of the world was captured, so that a graph may replay it.
  virtual bool has_captures() = 0;

  /// Waits for the world's calls and replays on this rank.
  virtual void await_calls() = 0;

  /// Collective, when all ranks have: the memory of the executor's heap goes back (runtime::CudaHeap::trim), and comes
  /// again.
  virtual void trim() = 0;
  virtual void restore() = 0;
};

/// As make_cuda_executor.
std::unique_ptr<WorldExecutor> make_world_executor(World& world, const CudaOptions& options);

/// Queues, on a stream, one call of the world in its order (runtime::StreamOrder).
class QueuedCall {
 public:
  QueuedCall(World& world, int gpu, CudaStream stream);
  /// All of it is queued.
  void end();

 private:
  std::shared_ptr<runtime::StreamOrder> order_;
  CudaStream stream_;
};

}  // namespace imbrex::cuda
