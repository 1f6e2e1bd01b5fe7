#include "runtime/cuda/stream_order.hpp"

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>

#include "base/check.hpp"
#include "runtime/attachment.hpp"
#include "runtime/calls.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/driver.hpp"
#include "runtime/one_process.hpp"

namespace imbrex::runtime {

struct StreamOrder::Shared {
  Last queued, captured;

  Shared() {
    for (Last* last : {&queued, &captured})
      IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&last->ended, cudaEventDisableTiming));
  }
  ~Shared() {
    for (Last* last : {&queued, &captured}) cudaEventDestroy(last->ended);
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
};

// Ranks that are threads of one process wait for each other, and may share a GPU: each has an order of its own.
std::shared_ptr<StreamOrder::Shared> StreamOrder::shared_by(World& world, int device) {
  if (shares_process(world)) return std::make_shared<Shared>();
  static std::mutex lock;
  static std::map<int, std::weak_ptr<Shared>> orders;
  const std::lock_guard guard(lock);
  std::shared_ptr<Shared> order = orders[device].lock();
  if (order == nullptr) orders[device] = order = std::make_shared<Shared>();
  return order;
}

StreamOrder::StreamOrder(World& world, int device) : world_(world), device_(device), shared_(shared_by(world, device)) {
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&probe_, cudaEventDisableTiming));
}

StreamOrder::~StreamOrder() { cudaEventDestroy(probe_); }

// NOTE: a kernel goes to the stream's device, with its arguments for this one, and an address that is not mapped there
// ends the process's use of both. An event records streams of its own device only, captured ones too.
void StreamOrder::expect_own(cudaStream_t stream) const {
  const cudaError_t status = cudaEventRecord(probe_, stream);
  if (status == cudaErrorInvalidResourceHandle) {
    cudaGetLastError();  // else the next launch would report it
    IMBREX_EXPECTS(false, "the stream belongs to GPU {}, and rank {} works on GPU {}: create it when that is current",
                   device_of(stream), world_.rank(), device_);
  }
  IMBREX_CUDA_TRY(status);
}

// A handle may come again for another stream: `enter` looks once more where the stream is a new one.
void StreamOrder::expect(cudaStream_t stream) {
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
// it until its end. The legacy stream is always the same one.
bool StreamOrder::enter(cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaSetDevice(device_));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long capture = 0, number = 0;
  IMBREX_CUDA_TRY(cudaStreamGetCaptureInfo(stream, &status, &capture));
  IMBREX_EXPECTS(status != cudaStreamCaptureStatusInvalidated, "the stream's capture failed before this call");
  const bool captured = status == cudaStreamCaptureStatusActive;
  if (captured)
    number = reinterpret_cast<std::uintptr_t>(stream);
  else if (stream == nullptr)
    number = std::numeric_limits<unsigned long long>::max();
  else
    IMBREX_CUDA_TRY(cudaStreamGetId(stream, &number));
  entered_ = captured ? &shared_->captured : &shared_->queued;
  const bool follows = entered_->any && (!captured || entered_->capture == capture);
  if (!follows || entered_->stream != number) {
    expect_own(stream);
    if (follows) IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, entered_->ended, 0));
  }
  stream_ = number;
  capture_ = capture;
  calls_of(world_).began(captured);
  return captured;
}

void StreamOrder::leave(cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaEventRecord(entered_->ended, stream));
  entered_->stream = stream_;
  entered_->capture = capture_;
  entered_->any = true;
  (entered_ == &shared_->captured ? was_captured_ : called_) = true;
}

void StreamOrder::follow(cudaStream_t stream) const {
  if (const cudaEvent_t ended = last()) IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, ended, 0));
}

cudaEvent_t StreamOrder::last() const { return shared_->queued.any ? shared_->queued.ended : nullptr; }

std::shared_ptr<StreamOrder> stream_order_of(World& world, int device) {
  std::shared_ptr<void>& kept = stream_order_slot(world);
  if (kept == nullptr) kept = std::make_shared<StreamOrder>(world, device);
  return std::static_pointer_cast<StreamOrder>(kept);
}

}  // namespace imbrex::runtime
