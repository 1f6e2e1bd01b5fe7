// Epochs of library plans that are queued, of one execution or of several that take turns.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/cuda/check.hpp"
#include "runtime/late.hpp"

namespace imbrex::cuda {

template <typename Execution>
struct EpochQueue {
  struct Place {
    cudaEvent_t begun = nullptr, done = nullptr;
    const Execution* whose = nullptr;
  };

  /// Steps that may be queued: after more, a launch could wait, without a limit, for a collective that no rank ends.
  static constexpr std::size_t most_steps = 512;

  /// `steps`: of an epoch, at most.
  explicit EpochQueue(std::size_t steps)
      : places(std::clamp<std::size_t>(most_steps / std::max<std::size_t>(steps, 1), 8, 64)) {
    for (Place& place : places)
      for (cudaEvent_t* event : {&place.begun, &place.done})
        IMBREX_CUDA_TRY(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
  }
  ~EpochQueue() {
    for (const Place& place : places)
      for (cudaEvent_t event : {place.begun, place.done}) cudaEventDestroy(event);
  }
  EpochQueue(const EpochQueue&) = delete;
  EpochQueue& operator=(const EpochQueue&) = delete;

  Place& next() { return places[queued % places.size()]; }
  const Place& oldest() const { return places[finished % places.size()]; }
  bool full() const { return queued - finished == places.size(); }
  bool busy() const {
    for (std::uint64_t i = finished; i < queued; ++i)
      if (cudaEventQuery(places[i % places.size()].done) == cudaErrorNotReady) return true;
    return false;
  }
  void finish_oldest() {
    ++finished;
    oldest_wait.reset();
  }

  std::vector<Place> places;
  std::uint64_t queued = 0, finished = 0;
  std::optional<runtime::BoundedWait> oldest_wait;  // from when it was seen to have begun
};

}  // namespace imbrex::cuda
