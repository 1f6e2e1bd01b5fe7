#include "runtime/cuda/gpu_clock.hpp"
#include "runtime/cuda/ordering.cuh"

namespace imbrex::runtime {
namespace {

__global__ void answer(ClockPing* ping) {
  const std::uint64_t begin = cuda::global_nanoseconds();
  while (ping->asked == 0u && cuda::global_nanoseconds() - begin < 1'000'000'000u) {
  }
  ping->time = cuda::global_nanoseconds();
  __threadfence_system();
  ping->answered = 1;
}

__global__ void stamp(std::uint64_t* to) { *to = cuda::global_nanoseconds(); }

// Its own status: the last error of the thread may be the caller's.
template <typename T>
cudaError_t launch(void (*kernel)(T*), cudaStream_t stream, T* argument) {
  cudaLaunchConfig_t config{};
  config.gridDim = config.blockDim = dim3(1);
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, argument);
}

}  // namespace

cudaError_t answer_clock_ping(ClockPing* ping) { return launch(answer, nullptr, ping); }

cudaError_t stamp_gpu_clock(std::uint64_t* to, cudaStream_t stream) { return launch(stamp, stream, to); }

}  // namespace imbrex::runtime
