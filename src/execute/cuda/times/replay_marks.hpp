// How a host sees that replays of captured epochs come on, where nothing of Imbrex' own waits in them: plans of
// libraries alone. Each such epoch says when it begins and when it has ended, in host memory that the device writes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

class ReplayMarks {
 public:
  /// The device is selected. Loads the kernel that marks.
  ReplayMarks();
  ~ReplayMarks();
  ReplayMarks(const ReplayMarks&) = delete;
  ReplayMarks& operator=(const ReplayMarks&) = delete;

  /// On a stream that is captured, before and after an epoch. The first mark goes to `beside`, a stream of the same
  /// capture, and runs concurrently with the epoch; the last one follows it, and takes about a microsecond.
  void begin(cudaStream_t stream, cudaStream_t beside);
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

  std::unique_ptr<Words, HostFree> words_;
  Words* on_device_ = nullptr;
  cudaEvent_t forked_ = nullptr, marked_ = nullptr;
  std::uint64_t seen_ = 0;  // epochs begun
};

}  // namespace imbrex::cuda
