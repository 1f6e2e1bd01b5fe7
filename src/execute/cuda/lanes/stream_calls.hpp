// What the executions of one executor share where callers bring their own streams: the order of the calls, and a thread
// that looks after them while no host thread waits.
//
// Order. A persistent kernel takes every SM and waits for its peers. Were two of them on two streams, rank
// 0 could run one first and rank 1 the other, and each would wait for what cannot start. So each call waits for the one
// before it, by an event where the streams differ: the ranks, which make the calls in one order, run them in one order.
// The same goes for calls of several worlds of one process on one GPU: they have one order between them.
#pragma once

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "imbrex/world.hpp"
#include "runtime/cuda/asks_during_captures.hpp"

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

  /// Selects the device and lets `stream` wait for the call before. Returns whether the stream is being captured:
  /// captured calls wait for those of the same capture only, others for those that are not captured. Throws
  /// Error(invalid_input) for a stream of another device.
  bool enter(cudaStream_t stream);

  /// Throws Error(invalid_input) for a stream of another device, or whose capture failed; queues nothing.
  void expect(cudaStream_t stream);

  /// The call has been queued.
  void leave(cudaStream_t stream);

  /// Lets a stream of the executor's own wait for the last call that was not captured.
  void follow(cudaStream_t stream);

  /// Whether some calls were captured, so that graphs may replay them.
  bool captured();

  /// Looks after the execution until `remove`; the first one starts the thread.
  void add(StreamExecution& execution);
  void remove(StreamExecution& execution) noexcept;

  /// What the thread does now and then: ends what waits for a lost rank, tells the others what failed here.
  void look() noexcept;

  /// Returns when all calls are over, and whether there were some of this world. Throws Error(runtime_failure) if the
  /// world failed and they do not end.
  bool drain();

 private:
  // Where the last call went.
  struct Last {
    cudaEvent_t ended = nullptr;
    unsigned long long stream = 0, capture = 0;
    bool any = false;
  };
  struct Order;

  static std::shared_ptr<Order> order_of(World& world, int device);
  void expect_own(cudaStream_t stream) const;
  void watch();

  World& world_;
  int device_;
  std::shared_ptr<Order> order_;
  Last* entered_ = nullptr;                     // the entry of this world's call in the order
  bool called_ = false, was_captured_ = false;  // by this world
  cudaEvent_t probe_ = nullptr;
  std::optional<cudaStream_t> expected_;         // the last one that was found right
  unsigned long long stream_ = 0, capture_ = 0;  // of the call that is being queued
  std::recursive_mutex lock_;
  std::condition_variable_any wake_;
  bool stop_ = false;
  std::vector<StreamExecution*> executions_;
  std::thread thread_;
};

}  // namespace imbrex::cuda
