#include "runtime/cuda/gpu_clock.hpp"

#include <algorithm>
#include <limits>
#include <memory>

#include "base/clock.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::runtime {
double gpu_clock_to_host() {
  void* memory = nullptr;
  IMBREX_CUDA_TRY(cudaHostAlloc(&memory, sizeof(ClockPing), cudaHostAllocMapped));
  const std::unique_ptr<void, cuda::HostFree> owner(memory);
  void* device = nullptr;
  IMBREX_CUDA_TRY(cudaHostGetDevicePointer(&device, memory, 0));
  auto* ping = static_cast<ClockPing*>(memory);
  double shortest = std::numeric_limits<double>::infinity(), offset = 0;
  constexpr int rounds = 8;
  constexpr double limit = 1;
  for (int round = 0; round < rounds; ++round) {
    ping->asked = 0;
    ping->answered = 0;
    IMBREX_CUDA_TRY(answer_clock_ping(static_cast<ClockPing*>(device)));
    const double begin = base::monotonic_seconds();
    ping->asked = 1;
    // A kernel that begins only after this answers late, and another round is the shortest.
    while (ping->answered == 0 && base::monotonic_seconds() - begin < limit) {
    }
    const double end = base::monotonic_seconds();
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
    if (end - begin >= std::min(shortest, limit)) continue;
    shortest = end - begin;
    offset = (begin + end) / 2 - static_cast<double>(ping->time) * 1e-9;
  }
  if (shortest >= limit) throw Error(ErrorCode::runtime_failure, "the GPU's clock was not told within a second");
  return offset;
}

}  // namespace imbrex::runtime
