// How a host sees that replays of captured epochs come on, where nothing of Imbrex' own waits in them: plans of
// libraries alone. Each such epoch says when it begins and when it has ended, in host memory that the device writes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

/// Epochs that have begun and ended, in the host's memory.
struct EpochCounts {
  volatile std::uint64_t begun = 0, ended = 0;
};

/// Memory of the host that the device writes: one page for the counts of many plans, since taking a page and giving it
/// back takes the driver long. Any thread.
class MarkRoom {
 public:
  struct Place {
    EpochCounts* counts = nullptr;
    EpochCounts* on_device = nullptr;
  };

  /// The device is selected. Both counts are 0. The first time it loads the kernel that marks, too.
  Place take();
  /// No graph writes there any more.
  void give_back(Place place) noexcept;

 private:
  struct Page {
    std::unique_ptr<EpochCounts, HostFree> counts;
    EpochCounts* on_device = nullptr;
  };

  std::mutex lock_;
  std::vector<Page> pages_;
  std::vector<Place> free_;
};

class ReplayMarks {
 public:
  /// The device is selected.
  explicit ReplayMarks(std::shared_ptr<MarkRoom> room);
  ~ReplayMarks();
  ReplayMarks(const ReplayMarks&) = delete;
  ReplayMarks& operator=(const ReplayMarks&) = delete;

  /// On a stream that is captured, before and after an epoch. A mark is a node of the graph that follows what the
  /// stream has, and that nothing of the stream follows: it holds up no work. Marks of a capture come one after
  /// another.
  void begin(cudaStream_t stream);
  void end(cudaStream_t stream);

  /// So many epochs have begun since the last look, and whether one is under way. Any thread, one at a time.
  struct Seen {
    std::uint64_t begun = 0;
    bool under_way = false;
  };
  Seen look();

  /// Keeps the memory from being used again, and freed: replays may still write there.
  void leak() noexcept;

 private:
  // The last marks in a graph that is being captured.
  struct OfCapture {
    unsigned long long capture = 0;
    cudaGraphNode_t begun = nullptr, ended = nullptr;
  };

  void add(cudaStream_t stream, bool end);

  std::shared_ptr<MarkRoom> room_;  // null once it leaked
  MarkRoom::Place place_;
  std::deque<OfCapture> captures_;  // the last ones
  std::uint64_t seen_ = 0;          // epochs begun
};

}  // namespace imbrex::cuda
