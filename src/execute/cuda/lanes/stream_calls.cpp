#include "execute/cuda/lanes/stream_calls.hpp"

#include <algorithm>
#include <chrono>

#include "execute/cuda/lanes/stream_execution.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

// How late a loss may be noticed between calls.
constexpr auto period = std::chrono::milliseconds(10);
// Kernels whose waits were ended, and aborted collectives, are over long before.
constexpr auto kernel_patience = std::chrono::seconds(5);

}  // namespace

StreamCalls::StreamCalls(World& world, int device)
    : world_(world), device_(device), order_(runtime::stream_order_of(world, device)) {}

StreamCalls::~StreamCalls() {
  {
    const std::lock_guard guard(lock_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void StreamCalls::follow(cudaStream_t stream) {
  const std::lock_guard guard(lock_);
  order_->follow(stream);
}

bool StreamCalls::captured() {
  const std::lock_guard guard(lock_);
  return order_->captured();
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
  const AsksDuringCaptures asks;
  std::unique_lock guard(lock_);
  while (!stop_) {
    wake_.wait_for(guard, period);
    if (!stop_) look();
  }
}

bool StreamCalls::drain() {
  const std::lock_guard guard(lock_);
  const cudaEvent_t last = order_->last();
  if (last == nullptr) return false;
  const AsksDuringCaptures asks;
  using Clock = std::chrono::steady_clock;
  Clock::time_point failed{};
  for (;;) {
    const cudaError_t status = cudaEventQuery(last);
    if (status == cudaSuccess) return order_->called();
    if (status != cudaErrorNotReady) IMBREX_CUDA_TRY(status);
    cudaGetLastError();
    look();
    try {
      world_.throw_if_failed();
    } catch (const Error&) {
      if (failed == Clock::time_point{}) failed = Clock::now();
      if (Clock::now() - failed > kernel_patience) throw;
    }
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

}  // namespace imbrex::cuda
