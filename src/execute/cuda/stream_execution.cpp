#include "execute/cuda/stream_execution.hpp"

#include <chrono>

#include "base/check.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {
namespace {

class Graph {
 public:
  template <typename Enqueue>
  Graph(cudaStream_t stream, int epochs, Enqueue&& enqueue) {
    // Other ranks may be threads that allocate meanwhile.
    IMBREX_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      for (int i = 0; i < epochs; ++i) enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    IMBREX_CUDA_TRY(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    IMBREX_CUDA_TRY(status);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { cudaGraphExecDestroy(executable_); }

  void launch(cudaStream_t stream) const { IMBREX_CUDA_TRY(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

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

  Replay(StreamExecution& execution, const Operands& with, int epochs)
      : operands(with),
        runs(epochs),
        lead(execution.stream(), lead_epochs, [&] { execution.enqueue(operands); }),
        timed(execution.stream(), epochs, [&] { execution.enqueue(operands); }) {}

  bool serves(const Operands& o, int r) const {
    return o.a == operands.a && o.b == operands.b && o.out == operands.out && r == runs;
  }

  Operands operands;
  int runs;
  Graph lead, timed;
  Event begin, end;
};

StreamExecution::StreamExecution() = default;

StreamExecution::~StreamExecution() = default;

Report StreamExecution::run(const Operands& operands) {
  const auto begin = std::chrono::steady_clock::now();
  enqueue(operands);
  finish();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(), {}};
}

// Epochs wait for each other's ranks, so those of the lead let all ranks begin the others together.
double StreamExecution::time(const Operands& operands, int runs) {
  IMBREX_EXPECTS(runs > 0 && runs % 2 == 0, "{} runs: it must be an even number, workspaces alternate", runs);
  if (replay_ == nullptr || !replay_->serves(operands, runs)) {
    run(operands);  // loads every kernel
    replay_ = std::make_unique<Replay>(*this, operands, runs);
  }
  replay_->lead.launch(stream());
  IMBREX_CUDA_TRY(cudaEventRecord(replay_->begin.get(), stream()));
  replay_->timed.launch(stream());
  IMBREX_CUDA_TRY(cudaEventRecord(replay_->end.get(), stream()));
  finish();
  IMBREX_CUDA_TRY(cudaEventSynchronize(replay_->end.get()));
  float milliseconds = 0;
  IMBREX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, replay_->begin.get(), replay_->end.get()));
  return static_cast<double>(milliseconds) * 1e-3 / runs;
}

}  // namespace imbrex::cuda
