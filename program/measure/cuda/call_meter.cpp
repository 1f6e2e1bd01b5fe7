#include "program/measure/cuda/call_meter.hpp"

#include <algorithm>
#include <utility>

#include "execute/cuda/lanes/graph.hpp"
#include "program/measure/turns.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::cuda {

Stream make_stream() {
  cudaStream_t stream = nullptr;
  IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}

CallMeter::Event CallMeter::make_event() {
  cudaEvent_t event = nullptr;
  IMBREX_CUDA_TRY(cudaEventCreate(&event));
  return Event(event);
}

class CallMeter::Lead {
 public:
  Lead(CudaCollectives& collectives, cudaStream_t stream) : memory_(raw_memory(bytes)) {
    IMBREX_CUDA_TRY(cudaMemsetAsync(memory_.get(), 0, bytes, stream));
    const auto call = [&] { collectives.all_reduce(memory_.get(), memory_.get(), 64, Type::bf16, stream); };
    call();
    collectives.finish(stream);
    graph_ = std::make_unique<Graph>(stream, 50, call);
  }
  void launch(cudaStream_t stream) const { graph_->launch(stream); }

 private:
  static constexpr std::size_t bytes = 128;
  RawMemory memory_;
  std::unique_ptr<Graph> graph_;
};

CallMeter::CallMeter(World& world, CudaCollectives& collectives, cudaStream_t stream, Settle settle)
    : world_(world),
      stream_(stream),
      settle_(std::move(settle)),
      begin_(make_event()),
      end_(make_event()),
      lead_(std::make_unique<Lead>(collectives, stream)) {}

CallMeter::~CallMeter() = default;

std::vector<double> CallMeter::times(const std::vector<Call>& calls, int runs, int rounds) {
  std::vector<std::unique_ptr<Graph>> graphs;
  for (const Call& call : calls)
    graphs.push_back(call ? std::make_unique<Graph>(stream_, runs, [&] { call(); }) : nullptr);
  std::vector<std::vector<double>> samples(calls.size());
  for (int round = -1; round < rounds; ++round)
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (graphs[i] == nullptr) continue;
      world_.barrier();
      lead_->launch(stream_);
      IMBREX_CUDA_TRY(cudaEventRecord(begin_.get(), stream_));
      graphs[i]->launch(stream_);
      IMBREX_CUDA_TRY(cudaEventRecord(end_.get(), stream_));
      settle_(i);
      float milliseconds = 0;
      IMBREX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()));
      const double seconds = slowest(static_cast<double>(milliseconds) * 1e-3) / runs;
      if (round >= 0) samples[i].push_back(seconds);
    }
  std::vector<double> medians;
  for (std::vector<double>& one : samples) medians.push_back(one.empty() ? 0 : program::median(std::move(one)));
  return medians;
}

int CallMeter::runs_for(std::int64_t bytes, int runs) {
  return bytes <= std::int64_t{8} << 20 ? runs : std::max(2, runs / 10);
}

double CallMeter::slowest(double seconds) {
  std::vector<double> all(static_cast<std::size_t>(world_.size()));
  world_.all_gather(&seconds, all.data(), sizeof seconds);
  return *std::max_element(all.begin(), all.end());
}

}  // namespace imbrex::cuda
