// What operators need of a world's GPU beside executions, for code that includes no CUDA header.
#pragma once

#include <cstdint>
#include <memory>

#include "imbrex/advanced/execute.hpp"

namespace imbrex::runtime {
class StreamOrder;
}

namespace imbrex::cuda {

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

/// This rank's memory at a place that a call said of its output (runtime::Calls::expect_place), but 0. The executor is
/// one of make_cuda_executor.
void* output_at(Executor& executor, std::uint64_t place);

/// Whether some call of the world was captured, so that a graph may replay it.
bool has_captures(Executor& executor);

/// Waits for the world's calls and replays on this rank.
void await_calls(Executor& executor);
/// Collective, when all ranks have: the memory of the executor's heap goes back (runtime::CudaHeap::trim), and comes
/// again.
void trim(Executor& executor);
void restore(Executor& executor);

}  // namespace imbrex::cuda
