// How a host sees that replays of captured epochs come on, where nothing of Imbrex' own waits in them: plans of
// libraries alone. Each such epoch says when it begins and when it has ended, in host memory that the device writes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>

#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

class ReplayMarks {
 public:
  /// The device is selected. Loads the kernel that marks.
  ReplayMarks();
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

  /// Keeps the memory from being freed: replays may still write there.
  void leak() noexcept { static_cast<void>(words_.release()); }

 private:
  struct Words {
    volatile std::uint64_t begun, ended;  ///< epochs
  };

  // The last marks in a graph that is being captured.
  struct OfCapture {
    unsigned long long capture = 0;
    cudaGraphNode_t begun = nullptr, ended = nullptr;
  };

  void add(cudaStream_t stream, bool end);

  std::unique_ptr<Words, HostFree> words_;
  Words* on_device_ = nullptr;
  std::deque<OfCapture> captures_;  // the last ones
  std::uint64_t seen_ = 0;          // epochs begun
};

}  // namespace imbrex::cuda
