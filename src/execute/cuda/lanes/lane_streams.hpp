// The streams that lanes run on. Executions that take turns share them: each stream takes half a MiB of the GPU.
//
// A stream that was drawn into a capture belongs to it until the capture ends, and takes no other work. So captures
// have streams apart. A capture keeps the order of its work, not the streams: a later one takes them again.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <list>
#include <vector>

namespace imbrex::cuda {

class LaneStreams {
 public:
  /// By lane.
  using Lanes = std::vector<cudaStream_t>;

  /// `first_is_callers`: calls put lane 0, which has the products, on the stream that they bring.
  explicit LaneStreams(bool first_is_callers) : first_is_callers_(first_is_callers) {}
  ~LaneStreams();
  LaneStreams(const LaneStreams&) = delete;
  LaneStreams& operator=(const LaneStreams&) = delete;

  /// At least so many, for work that is not captured. The device is selected. Valid until the next call of either.
  const Lanes& direct(std::size_t count);

  /// As many for work of the capture that `stream` is in. Lane 0, where it is the caller's, is null.
  const Lanes& captured(cudaStream_t stream, std::size_t count);

  /// Whether work that is not captured is under way.
  bool busy() const;

  /// Lets the streams live on: they hold what does not end.
  void leak() noexcept;

 private:
  struct OfCapture {
    unsigned long long capture = 0;
    Lanes lanes{};
  };

  const Lanes& grown(Lanes& lanes, std::size_t count) const;

  bool first_is_callers_;
  Lanes direct_;
  std::list<OfCapture> captured_;
};

}  // namespace imbrex::cuda
