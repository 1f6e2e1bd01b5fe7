// How a host waits for a stream while it looks after its world.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>

namespace imbrex::runtime {

/// Until the stream is idle; the status with which it is. Calls look() about once a millisecond, but not in short
/// waits.
template <typename Look>
cudaError_t await_stream(cudaStream_t stream, Look&& look) {
  for (int round = 0;; ++round) {
    const cudaError_t status = cudaStreamQuery(stream);
    if (status != cudaErrorNotReady) return status;
    cudaGetLastError();
    if (round < 20000) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (round % 64 == 0) look();
  }
}

}  // namespace imbrex::runtime
