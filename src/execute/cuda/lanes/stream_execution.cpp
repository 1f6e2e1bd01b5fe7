#include "execute/cuda/lanes/stream_execution.hpp"

#include <chrono>
#include <thread>

#include "base/check.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "runtime/calls.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

class Event {
 public:
  Event() { IMBREX_CUDA_TRY(cudaEventCreate(&event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

struct StreamExecution::Replay {
  static constexpr int lead_epochs = 2;

  Replay(StreamExecution& execution, const Addresses& with, int epochs)
      : operands(with),
        runs(epochs),
        lead(execution.stream(), lead_epochs, [&] { execution.enqueue(operands); }),
        timed(execution.stream(), epochs, [&] { execution.enqueue(operands); }) {}

  bool serves(const Addresses& o, int r) const { return o == operands && r == runs; }

  Addresses operands;
  int runs;
  Graph lead, timed;
  Event begin, end;
};

void hold_back(const World& world, const CudaOptions& options, std::uint64_t epoch) {
  if (options.testing.delays == 0 ||
      static_cast<int>((options.testing.delays + epoch) % static_cast<std::uint64_t>(world.size())) != world.rank())
    return;
  std::this_thread::sleep_for(std::chrono::duration<double>(20 * options.testing.max_delay));
}

void expect_one_place(World& world, const runtime::CudaHeap& heap, const void* out) {
  const auto* first = heap.handle().at(world.rank(), 0);
  runtime::calls_of(world).expect_place(
      out == nullptr ? 0 : static_cast<std::uint64_t>(static_cast<const std::byte*>(out) - first) + 1);
}

StreamExecution::StreamExecution(StreamCalls& calls, bool records) : calls_(calls), records_(records) {}

StreamExecution::~StreamExecution() = default;

void StreamExecution::retire() noexcept {
  if (looked_after_) calls_.remove(*this);
  looked_after_ = false;
}

void StreamExecution::enqueue(const Addresses& operands, CudaStream stream) {
  const std::lock_guard guard(calls_.lock());
  // Calls beside a capture that this thread has open are no part of it.
  const AsksDuringCaptures asks;
  expect_sound();
  if (!looked_after_) {
    calls_.add(*this);
    looked_after_ = true;
  }
  stale_ = true;
  put(operands, stream, calls_.enter(stream) ? Call::captured : Call::direct);
  calls_.leave(stream);
}

void StreamExecution::enqueue(const Addresses& operands) {
  stale_ = true;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  IMBREX_CUDA_TRY(cudaStreamIsCapturing(stream(), &status));
  put(operands, stream(), status == cudaStreamCaptureStatusNone ? Call::direct : Call::paired);
}

// The copy comes behind the call before, which may read what is overwritten.
void StreamExecution::put(const Addresses& operands, cudaStream_t stream, Call call) {
  const auto& [memory, rows, bytes, pitch] = operands.aside;
  if (memory == nullptr) return launch(operands, stream, call);
  if (pitch == bytes)
    IMBREX_CUDA_TRY(cudaMemcpyAsync(memory, operands.a, rows * bytes, cudaMemcpyDeviceToDevice, stream));
  else
    IMBREX_CUDA_TRY(cudaMemcpy2DAsync(memory, pitch, operands.a, pitch, bytes, rows, cudaMemcpyDeviceToDevice, stream));
  Addresses apart = operands;
  apart.a = memory;
  launch(apart, stream, call);
}

void StreamExecution::expect_stream(CudaStream stream) {
  const std::lock_guard guard(calls_.lock());
  calls_.expect(stream);
}

void StreamExecution::check() {
  const std::lock_guard guard(calls_.lock());
  const AsksDuringCaptures asks;
  look();
  expect_sound();
}

void StreamExecution::synchronize(CudaStream stream) {
  const std::lock_guard guard(calls_.lock());
  await(stream);
}

void StreamExecution::await_replays(int device) {
  if (!calls_.captured()) return;
  IMBREX_CUDA_TRY(cudaSetDevice(device));
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
}

Report StreamExecution::run(const Addresses& operands) {
  const auto begin = std::chrono::steady_clock::now();
  const std::lock_guard guard(calls_.lock());
  const auto queue = [&](int epochs) {
    calls_.enter(stream());
    for (int i = 0; i < epochs; ++i) enqueue(operands);
    calls_.leave(stream());
    finish();
  };
  queue(1);
  Report report{std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), {}};
  if (records_) {
    // Ranks come to the first at times that are their hosts'; to the last they come as in a stream of epochs.
    queue(4);
    report.timeline.spans = spans();
  }
  return report;
}

// Epochs wait for each other's ranks, so those of the lead let all ranks begin the others together.
double StreamExecution::time(const Addresses& operands, int runs) {
  IMBREX_EXPECTS(runs > 0 && runs % 2 == 0, "{} runs: it must be an even number, workspaces alternate", runs);
  const std::lock_guard guard(calls_.lock());
  // Copies in a captured epoch go to the workspaces of even epochs, or of odd ones: after others it may be the wrong
  // one.
  if (replay_ == nullptr || stale_ || !replay_->serves(operands, runs)) {
    run(operands);  // loads every kernel
    replay_ = std::make_unique<Replay>(*this, operands, runs);
    stale_ = false;
  }
  calls_.enter(stream());
  replay_->lead.launch(stream());
  IMBREX_CUDA_TRY(cudaEventRecord(replay_->begin.get(), stream()));
  replay_->timed.launch(stream());
  IMBREX_CUDA_TRY(cudaEventRecord(replay_->end.get(), stream()));
  calls_.leave(stream());
  finish();
  IMBREX_CUDA_TRY(cudaEventSynchronize(replay_->end.get()));
  float milliseconds = 0;
  IMBREX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, replay_->begin.get(), replay_->end.get()));
  return static_cast<double>(milliseconds) * 1e-3 / runs;
}

}  // namespace imbrex::cuda
