#include "execute/cuda/lanes/stream_calls.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>

#include "execute/cuda/lanes/stream_execution.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::cuda {
namespace {

// How late a loss may be noticed between calls.
constexpr auto period = std::chrono::milliseconds(10);
// Kernels whose waits were ended, and aborted collectives, are over long before.
constexpr auto patience = std::chrono::seconds(5);

}  // namespace

struct StreamCalls::Order {
  Last queued, captured;

  Order() {
    for (Last* last : {&queued, &captured})
      IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&last->ended, cudaEventDisableTiming));
  }
  ~Order() {
    for (Last* last : {&queued, &captured}) cudaEventDestroy(last->ended);
  }
  Order(const Order&) = delete;
  Order& operator=(const Order&) = delete;
};

// Ranks that are threads of one process wait for each other, and may share a GPU: each has an order of its own.
std::shared_ptr<StreamCalls::Order> StreamCalls::order_of(World& world, int device) {
  if (runtime::shares_process(world)) return std::make_shared<Order>();
  static std::mutex lock;
  static std::map<int, std::weak_ptr<Order>> orders;
  const std::lock_guard guard(lock);
  std::shared_ptr<Order> order = orders[device].lock();
  if (order == nullptr) orders[device] = order = std::make_shared<Order>();
  return order;
}

StreamCalls::StreamCalls(World& world, int device) : world_(world), device_(device), order_(order_of(world, device)) {
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&probe_, cudaEventDisableTiming));
}

StreamCalls::~StreamCalls() {
  {
    const std::lock_guard guard(lock_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
  cudaEventDestroy(probe_);
}

// NOTE: a kernel goes to the stream's device, with its arguments for this one, and an address that is not mapped there
// ends the process's use of both. An event records streams of its own device only, captured ones too.
void StreamCalls::expect_own(cudaStream_t stream) const {
  const cudaError_t status = cudaEventRecord(probe_, stream);
  if (status == cudaErrorInvalidResourceHandle) {
    cudaGetLastError();  // else the next launch would report it
    IMBREX_EXPECTS(false, "the stream belongs to GPU {}, and rank {} works on GPU {}: create it when that is current",
                   runtime::device_of(stream), world_.rank(), device_);
  }
  IMBREX_CUDA_TRY(status);
}

// A handle may come again for another stream: `enter` looks once more where the stream is a new one.
void StreamCalls::expect(cudaStream_t stream) {
  if (expected_ == stream) return;
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  IMBREX_CUDA_TRY(cudaStreamIsCapturing(stream, &status));
  IMBREX_EXPECTS(status != cudaStreamCaptureStatusInvalidated, "the stream's capture failed before this call");
  expect_own(stream);
  expected_ = stream;
}

// Streams are told apart by their numbers: a handle may come again after its stream was destroyed. The number of one
// that is being captured cannot be asked, and asking ends the capture; in one capture handles do, as a stream stays in
// it until its end.
bool StreamCalls::enter(cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0, number = 0;
  IMBREX_CUDA_TRY(cudaStreamGetCaptureInfo(stream, &status, &capture));
  IMBREX_EXPECTS(status != cudaStreamCaptureStatusInvalidated, "the stream's capture failed before this call");
  const bool captured = status == cudaStreamCaptureStatusActive;
  if (captured)
    number = reinterpret_cast<std::uintptr_t>(stream);
  else
    IMBREX_CUDA_TRY(cudaStreamGetId(stream, &number));
  entered_ = captured ? &order_->captured : &order_->queued;
  const bool follows = entered_->any && (!captured || entered_->capture == capture);
  if (!follows || entered_->stream != number) {
    expect_own(stream);
    if (follows) IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, entered_->ended, 0));
  }
  stream_ = number;
  capture_ = capture;
  return captured;
}

void StreamCalls::leave(cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaEventRecord(entered_->ended, stream));
  entered_->stream = stream_;
  entered_->capture = capture_;
  entered_->any = true;
  (entered_ == &order_->captured ? was_captured_ : called_) = true;
}

void StreamCalls::follow(cudaStream_t stream) {
  const std::lock_guard guard(lock_);
  if (order_->queued.any) IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, order_->queued.ended, 0));
}

bool StreamCalls::captured() {
  const std::lock_guard guard(lock_);
  return was_captured_;
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
  if (!order_->queued.any) return false;
  using Clock = std::chrono::steady_clock;
  Clock::time_point failed{};
  for (;;) {
    const cudaError_t status = cudaEventQuery(order_->queued.ended);
    if (status == cudaSuccess) return called_;
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
