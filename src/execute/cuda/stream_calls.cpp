#include "execute/cuda/stream_calls.hpp"

#include <algorithm>
#include <chrono>

#include "execute/cuda/stream_execution.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

// How late a loss may be noticed while nobody calls.
constexpr auto period = std::chrono::milliseconds(10);
// Kernels whose waits were ended, and aborted collectives, are over long before.
constexpr auto patience = std::chrono::seconds(5);

}  // namespace

StreamCalls::StreamCalls(World& world, int device) : world_(world), device_(device) {
  for (Last* last : {&queued_, &captured_})
    IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&last->ended, cudaEventDisableTiming));
}

StreamCalls::~StreamCalls() {
  {
    const std::lock_guard guard(lock_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (Last* last : {&queued_, &captured_}) cudaEventDestroy(last->ended);
}

// Streams are told apart by their numbers: a handle may come again after its stream was destroyed.
bool StreamCalls::enter(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0, number = 0;
  IMBREX_CUDA_TRY(cudaStreamGetCaptureInfo(stream, &status, &capture));
  IMBREX_EXPECTS(status != cudaStreamCaptureStatusInvalidated, "the stream's capture failed before this call");
  IMBREX_CUDA_TRY(cudaStreamGetId(stream, &number));
  const bool captured = status == cudaStreamCaptureStatusActive;
  entered_ = captured ? &captured_ : &queued_;
  if (entered_->any && entered_->stream != number && (!captured || entered_->capture == capture))
    IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, entered_->ended, 0));
  stream_ = number;
  capture_ = capture;
  return captured;
}

void StreamCalls::leave(cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaEventRecord(entered_->ended, stream));
  entered_->stream = stream_;
  entered_->capture = capture_;
  entered_->any = true;
}

void StreamCalls::add(StreamExecution& execution) {
  const std::lock_guard guard(lock_);
  executions_.push_back(&execution);
  if (!thread_.joinable()) thread_ = std::thread([this] { watch(); });
}

void StreamCalls::remove(StreamExecution& execution) noexcept {
  const std::lock_guard guard(lock_);
  std::erase(executions_, &execution);
}

void StreamCalls::look() noexcept {
  for (StreamExecution* execution : executions_) execution->look();
}

void StreamCalls::watch() {
  cudaSetDevice(device_);
  // A capture in global mode forbids other threads what may disturb it, such as asking events.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  std::unique_lock guard(lock_);
  while (!stop_) {
    wake_.wait_for(guard, period);
    if (!stop_) look();
  }
}

bool StreamCalls::drain() {
  const std::lock_guard guard(lock_);
  if (!queued_.any) return false;
  using Clock = std::chrono::steady_clock;
  Clock::time_point failed{};
  for (;;) {
    const cudaError_t status = cudaEventQuery(queued_.ended);
    if (status == cudaSuccess) return true;
    if (status != cudaErrorNotReady) IMBREX_CUDA_TRY(status);
    cudaGetLastError();
    look();
    try {
      world_.throw_if_failed();
    } catch (const Error&) {
      if (failed == Clock::time_point{}) failed = Clock::now();
      if (Clock::now() - failed > patience) throw;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace imbrex::cuda
