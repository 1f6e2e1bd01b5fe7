#include "execute/cuda/times/step_times.hpp"

#include <cstdint>

#include "runtime/cuda/gpu_clock.hpp"

namespace imbrex::cuda {

StepTimes::StepTimes(std::size_t steps, double to_host)
    : events_(2 * steps + 1), stamp_(raw_memory(sizeof(std::uint64_t))), to_host_(to_host) {
  for (cudaEvent_t& event : events_) IMBREX_CUDA_TRY(cudaEventCreate(&event));
}

StepTimes::~StepTimes() {
  for (cudaEvent_t event : events_)
    if (event != nullptr) cudaEventDestroy(event);
}

void StepTimes::begin_epoch(cudaStream_t stream) {
  IMBREX_CUDA_TRY(runtime::stamp_gpu_clock(static_cast<std::uint64_t*>(stamp_.get()), stream));
  IMBREX_CUDA_TRY(cudaEventRecord(events_.front(), stream));
}

void StepTimes::begin(std::size_t step, cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaEventRecord(events_[2 * step + 1], stream));
}

void StepTimes::end(std::size_t step, cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaEventRecord(events_[2 * step + 2], stream));
}

std::vector<StepTimes::Stretch> StepTimes::read() const {
  std::uint64_t stamp = 0;
  IMBREX_CUDA_TRY(cudaMemcpy(&stamp, stamp_.get(), sizeof stamp, cudaMemcpyDeviceToHost));
  const double origin = static_cast<double>(stamp) * 1e-9 + to_host_;
  const auto at = [&](std::size_t event) {
    float milliseconds = 0;
    IMBREX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, events_.front(), events_[event]));
    return origin + static_cast<double>(milliseconds) * 1e-3;
  };
  std::vector<Stretch> stretches;
  for (std::size_t event = 1; event < events_.size(); event += 2) stretches.push_back({at(event), at(event + 1)});
  return stretches;
}

}  // namespace imbrex::cuda
