// What the executions of one executor share where callers bring their own streams: the world's order of calls, and a
// thread that looks after them while no host thread waits.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "imbrex/world.hpp"
#include "runtime/cuda/asks_during_captures.hpp"
#include "runtime/cuda/stream_order.hpp"

namespace imbrex::cuda {

class StreamExecution;

/// Worlds of one process on one GPU are used by one host thread at a time.
class StreamCalls {
 public:
  /// The device is selected.
  StreamCalls(World& world, int device);
  ~StreamCalls();
  StreamCalls(const StreamCalls&) = delete;
  StreamCalls& operator=(const StreamCalls&) = delete;

  /// Held by threads that queue, wait for, or look after epochs.
  std::recursive_mutex& lock() { return lock_; }

  /// As StreamOrder's.
  bool enter(cudaStream_t stream) { return order_->enter(stream); }
  void expect(cudaStream_t stream) { order_->expect(stream); }
  void leave(cudaStream_t stream) { order_->leave(stream); }

  /// Lets a stream of the executor's own wait for the last call that was not captured.
  void follow(cudaStream_t stream);

  /// Whether some calls were captured, so that graphs may replay them.
  bool captured();

  /// The ranks have memory of the heap for outputs, or had some: their calls say where outputs lie. The same on all.
  void lend_outputs() { outputs_lent_ = true; }
  bool outputs_lent() const { return outputs_lent_; }

  /// Looks after the execution until `remove`; the first one starts the thread.
  void add(StreamExecution& execution);
  void remove(StreamExecution& execution) noexcept;

  /// What the thread does now and then: ends what waits for a lost rank, tells the others what failed here.
  void look() noexcept;

  /// Returns when all calls are over, and whether there were some of this world. Throws Error(runtime_failure) if the
  /// world failed and they do not end.
  bool drain();

 private:
  void watch();

  World& world_;
  int device_;
  std::shared_ptr<runtime::StreamOrder> order_;
  bool outputs_lent_ = false;
  std::recursive_mutex lock_;
  std::condition_variable_any wake_;
  bool stop_ = false;
  std::vector<StreamExecution*> executions_;
  std::thread thread_;
};

}  // namespace imbrex::cuda
