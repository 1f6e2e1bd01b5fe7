// How long collective calls take on GPUs.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "collectives/cuda/cuda_collectives.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cuda {

struct StreamEnd {
  void operator()(cudaStream_t stream) const noexcept { cudaStreamDestroy(stream); }
};
using Stream = std::unique_ptr<CUstream_st, StreamEnd>;

/// Does not wait for the default stream.
Stream make_stream();

/// Calls replayed from graphs, in turn, after small all-reduces that bring the ranks together and give the host time
/// to queue what is timed. The slowest rank counts, and medians.
class CallMeter {
 public:
  /// Enqueues one call on the stream.
  using Call = std::function<void()>;
  /// Waits until the stream is idle, within a limit; the number is that of the call in the list.
  using Settle = std::function<void(std::size_t call)>;

  /// Collective.
  CallMeter(World& world, CudaCollectives& collectives, cudaStream_t stream, Settle settle);
  ~CallMeter();

  /// Collective: seconds of each call, in graphs of `runs`, over `rounds` and one to warm up; 0 for an empty one. Every
  /// call has run before.
  std::vector<double> times(const std::vector<Call>& calls, int runs, int rounds);

  /// So many runs of large vectors are enough.
  static int runs_for(std::int64_t bytes, int runs);

 private:
  class Lead;
  struct EventEnd {
    void operator()(cudaEvent_t event) const noexcept { cudaEventDestroy(event); }
  };
  using Event = std::unique_ptr<CUevent_st, EventEnd>;
  static Event make_event();

  double slowest(double seconds);

  World& world_;
  cudaStream_t stream_;
  Settle settle_;
  Event begin_, end_;
  std::unique_ptr<Lead> lead_;
};

}  // namespace imbrex::cuda
