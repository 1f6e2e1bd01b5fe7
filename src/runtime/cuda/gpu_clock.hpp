// The GPU's global timer beside the host's steady clock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace imbrex::runtime {

/// Seconds to add to the current GPU's global timer for the host's steady clock, right to about a microsecond. Takes
/// some launches. Throws Error(runtime_failure) if CUDA fails.
double gpu_clock_to_host();

/// Writes down the global timer, to memory of the device, where the stream has come.
cudaError_t stamp_gpu_clock(std::uint64_t* to, cudaStream_t stream);

/// What gpu_clock_to_host asks the GPU, in host memory that both see.
struct ClockPing {
  volatile std::uint32_t asked, answered;
  volatile std::uint64_t time;
};
/// Launches what answers a ping once it is asked, or after a second.
cudaError_t answer_clock_ping(ClockPing* ping);

}  // namespace imbrex::runtime
