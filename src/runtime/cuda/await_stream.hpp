// How a host waits for the GPU while it looks after its world.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <thread>
#include <utility>

#include "runtime/cuda/asks_during_captures.hpp"

namespace imbrex::runtime {

/// Waits until query(), which asks for a status, gives another one than cudaErrorNotReady, and returns that. Calls
/// look() about once a millisecond, but not in short waits. What look() throws ends the wait.
template <typename Query, typename Look>
cudaError_t await_query(Query&& query, Look&& look) {
  const cuda::AsksDuringCaptures asks;
  for (int round = 0;; ++round) {
    const cudaError_t status = query();
    if (status != cudaErrorNotReady) return status;
    cudaGetLastError();
    if (round < 20000) continue;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (round % 64 == 0) look();
  }
}

/// Waits until the stream is idle or has failed, and returns which, as await_query does.
template <typename Look>
cudaError_t await_stream(cudaStream_t stream, Look&& look) {
  return await_query([stream] { return cudaStreamQuery(stream); }, std::forward<Look>(look));
}

}  // namespace imbrex::runtime
