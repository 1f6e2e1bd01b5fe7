#include "imbrex/device/ordering.hpp"
#include "runtime/cuda/gpu_clock.hpp"

namespace imbrex::runtime {
namespace {

__global__ void answer(ClockPing* ping) {
  const std::uint64_t begin = device::now_ns();
  while (ping->asked == 0u && device::now_ns() - begin < 1'000'000'000u) {
  }
  ping->time = device::now_ns();
  __threadfence_system();
  ping->answered = 1;
}

__global__ void stamp(std::uint64_t* to) { *to = device::now_ns(); }

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
