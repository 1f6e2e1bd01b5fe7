// When what was queued on streams, step by step, ran on the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

/// Times of one epoch, by events; calls that put the next epoch on its streams replace them. The device is selected.
class StepTimes {
 public:
  /// `to_host`: as runtime::gpu_clock_to_host gives it.
  StepTimes(std::size_t steps, double to_host);
  StepTimes(const StepTimes&) = delete;
  StepTimes& operator=(const StepTimes&) = delete;
  ~StepTimes();

  void begin_epoch(cudaStream_t stream);
  void begin(std::size_t step, cudaStream_t stream);
  void end(std::size_t step, cudaStream_t stream);

  /// Seconds of the host's steady clock.
  struct Stretch {
    double begin, end;
  };
  /// By step, of an epoch that is over.
  std::vector<Stretch> read() const;

 private:
  std::vector<cudaEvent_t> events_;  // the epoch's begin, then each step's begin and end
  RawMemory stamp_;                  // the GPU's clock where the epoch begins
  double to_host_;
};

}  // namespace imbrex::cuda
