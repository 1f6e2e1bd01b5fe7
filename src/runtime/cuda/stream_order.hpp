// The order of a world's calls on a GPU, whatever streams callers bring.
//
// A persistent kernel takes every SM and waits for its peers. Were two of them on two streams, rank 0 could run one
// first and rank 1 the other, and each would wait for what cannot start; two calls of one object would take each
// other's data. So each call waits for the one before it, by an event where the streams differ: the ranks, which make
// the calls in one order, run them in one order. The same goes for calls of several worlds of one process on one GPU:
// they have one order between them.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <optional>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// One world has one; one host thread at a time uses it.
class StreamOrder {
 public:
  /// The device is selected.
  StreamOrder(World& world, int device);
  ~StreamOrder();
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;

  /// Selects the device and lets `stream` wait for the call before. Returns whether the stream is being captured:
  /// captured calls wait for those of the same capture only, others for those that are not captured. Throws
  /// Error(invalid_input) for a stream of another device.
  bool enter(cudaStream_t stream);

  /// Throws Error(invalid_input) for a stream of another device, or whose capture failed; queues nothing.
  void expect(cudaStream_t stream);

  /// The call has been queued.
  void leave(cudaStream_t stream);

  /// Lets a stream wait for the last call that was not captured.
  void follow(cudaStream_t stream) const;

  /// The end of the last call of any world that was not captured; null where there was none.
  cudaEvent_t last() const;

  /// Whether there was a call of this world that was captured, or one that was not.
  bool captured() const { return was_captured_; }
  bool called() const { return called_; }

 private:
  struct Shared;

  // Where the last call went.
  struct Last {
    cudaEvent_t ended = nullptr;
    unsigned long long stream = 0, capture = 0;
    bool any = false;
  };

  static std::shared_ptr<Shared> shared_by(World& world, int device);
  void expect_own(cudaStream_t stream) const;

  World& world_;
  int device_;
  std::shared_ptr<Shared> shared_;
  Last* entered_ = nullptr;                     // the entry of this world's call in the order
  bool called_ = false, was_captured_ = false;  // by this world
  cudaEvent_t probe_ = nullptr;
  std::optional<cudaStream_t> expected_;         // the last one that was found right
  unsigned long long stream_ = 0, capture_ = 0;  // of the call that is being queued
};

/// The world's, which is made by the first call and kept with it. The device is selected.
std::shared_ptr<StreamOrder> stream_order_of(World& world, int device);

/// Queues, on a stream, one call of a world in its order.
class InOrder {
 public:
  InOrder(StreamOrder& order, cudaStream_t stream) : order_(order), stream_(stream), captured_(order.enter(stream)) {}
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;
  /// All of it is queued.
  void end() { order_.leave(stream_); }
  /// Whether a graph has it, so that it may run later, on any stream.
  bool captured() const { return captured_; }

 private:
  StreamOrder& order_;
  cudaStream_t stream_;
  bool captured_;
};

}  // namespace imbrex::runtime
