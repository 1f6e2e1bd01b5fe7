// Times plans through one version's library, on command. compare.py runs two such programs in turn. It compiles against
// any version since 4d056c6: what differs between their headers stands at the top.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

namespace {

using namespace imbrex;
using Json = nlohmann::json;

#if __has_include("imbrex/operands.hpp")
void call(GemmOperator& op, void* a, void* b, void* out, cudaStream_t stream) {
  op.run({op.operand("a", a), op.operand("b", b), op.operand("out", out)}, stream);
}
#else
void call(GemmOperator& op, void* a, void* b, void* out, cudaStream_t stream) { op(a, b, out, stream); }
#endif

void expect(cudaError_t status) {
  if (status != cudaSuccess) throw Error(ErrorCode::runtime_failure, cudaGetErrorString(status));
}

struct Job {
  Problem problem;
  Strategy strategy = Strategy::fused;
  Knobs knobs;
};

Job job_of(const Json& json, int ranks) {
  const Json& p = json.at("problem");
  Job job{{parse_operator(p.at("operator").get<std::string>()), p.at("m"), p.at("n"), p.at("k"), ranks, Type::bf16},
          parse_strategy(json.value("strategy", "fused")),
          {}};
  const Json knobs = json.value("knobs", Json::object());
  const auto set = [&](const char* name, auto& field) {
    if (knobs.contains(name)) knobs.at(name).get_to(field);
  };
  Knobs& k = job.knobs;
  set("tile_m", k.tile_m), set("tile_n", k.tile_n), set("group", k.group), set("cluster", k.cluster);
  set("cluster_k", k.cluster_k), set("comm_rows", k.comm_rows), set("k_slices", k.k_slices), set("split_k", k.split_k);
  set("own_shift", k.own_shift), set("abreast", k.abreast), set("span_shards", k.span_shards);
  set("one_shot", k.one_shot);
  if (knobs.contains("order")) k.order = parse_tile_order(knobs.at("order").get<std::string>());
  if (knobs.contains("transport")) k.transport = parse_transport(knobs.at("transport").get<std::string>());
  if (knobs.contains("reducer")) k.reducer = parse_reducer(knobs.at("reducer").get<std::string>());
  if (knobs.contains("partial")) k.partial = parse_type(knobs.at("partial").get<std::string>());
  return job;
}

// bf16 numbers between -1 and 1.
std::shared_ptr<void> random_matrix(const Extent& extent) {
  static const std::vector<std::uint16_t> some = [] {
    std::vector<std::uint16_t> values(std::size_t{1} << 22);
    std::mt19937 random(7);
    for (std::uint16_t& v : values) v = static_cast<std::uint16_t>((random() & 0x8000) | (0x3e80 + random() % 0x100));
    return values;
  }();
  const std::size_t bytes = static_cast<std::size_t>(extent.rows * extent.cols) * 2, chunk = some.size() * 2;
  void* p = nullptr;
  expect(cudaMalloc(&p, bytes));
  std::shared_ptr<void> owner(p, [](void* memory) { cudaFree(memory); });
  for (std::size_t at = 0; at < bytes; at += chunk)
    expect(
        cudaMemcpy(static_cast<std::byte*>(p) + at, some.data(), std::min(chunk, bytes - at), cudaMemcpyHostToDevice));
  return owner;
}

double microseconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// What rank 0 reads from its input reaches all.
std::string next_command(World& world) {
  std::array<char, 64> own{};
  if (world.rank() == 0) {
    std::string line;
    if (!std::getline(std::cin, line)) line = "end";
    line.copy(own.data(), own.size() - 1);
  }
  std::vector<std::array<char, 64>> all(static_cast<std::size_t>(world.size()));
  world.all_gather(own.data(), all.data(), sizeof own);
  return all.front().data();
}

void answer(World& world, double value) {
  std::vector<double> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&value, all.data(), sizeof value);
  if (world.rank() == 0) {
    std::printf("%.3f\n", *std::max_element(all.begin(), all.end()));
    std::fflush(stdout);
  }
}

// Calls that were captured, as a graph.
class Calls {
 public:
  template <typename Call>
  Calls(cudaStream_t stream, int count, Call&& call) : stream_(stream) {
    expect(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < count; ++i) call();
    cudaGraph_t graph = nullptr;
    expect(cudaStreamEndCapture(stream, &graph));
    expect(cudaGraphInstantiate(&made_, graph, 0));
    expect(cudaGraphDestroy(graph));
  }
  Calls(const Calls&) = delete;
  Calls& operator=(const Calls&) = delete;
  ~Calls() { cudaGraphExecDestroy(made_); }
  void launch() const { expect(cudaGraphLaunch(made_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t made_ = nullptr;
};

class Rank {
 public:
  Rank(World& world, const std::vector<Job>& jobs, CudaOptions options, bool host)
      : world_(world), jobs_(jobs), options_(std::move(options)), host_(host) {}

  // "job I" prepares job I and answers the time in us, "time" answers an epoch's us, "call" a call's on the host.
  void obey() {
    for (std::string command; (command = next_command(world_)) != "end";) {
      if (command.starts_with("job "))
        answer(world_, prepare(jobs_.at(std::stoul(command.substr(4)))));
      else if (command == "time")
        answer(world_, time_on_gpu());
      else if (command == "call")
        answer(world_, time_calls());
    }
    drop();
  }

 private:
  void drop() {
    timed_.reset();
    lead_.reset();
    operator_.reset();
  }

  double prepare(const Job& job) {
    drop();
    const RankShapes shapes = shapes_of(job.problem);
    a_ = random_matrix(shapes.a), b_ = random_matrix(shapes.b), out_ = random_matrix(shapes.out);
    if (stream_ == nullptr) expect(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    if (!host_) {
      const auto begin = std::chrono::steady_clock::now();
      operator_ = make(job, {job.problem.m, job.problem.n, job.problem.k, job.problem.type});
      return microseconds_since(begin);
    }
    // The first one loads kernels; another shape does not find this one's tables.
    double took = 0;
    for (const std::int64_t more : {0, 128, 256, 384}) {
      operator_.reset();
      GemmShape shape{job.problem.m, job.problem.n + more * world_.size(), job.problem.k, job.problem.type};
      if (more == 384) shape.n = job.problem.n;
      world_.barrier();
      const auto begin = std::chrono::steady_clock::now();
      operator_ = make(job, shape);
      took = microseconds_since(begin);
    }
    return took;
  }

  std::unique_ptr<GemmOperator> make(const Job& job, const GemmShape& shape) {
    OperatorOptions options;
    options.strategy = job.strategy;
    options.knobs = job.knobs;
    options.device = Device::cuda;
    options.cuda = options_;
    switch (job.problem.op) {
      case Operator::all_gather_gemm: return std::make_unique<AllGatherGemm>(world_, shape, options);
      case Operator::gemm_reduce_scatter: return std::make_unique<GemmReduceScatter>(world_, shape, options);
      case Operator::gemm_all_reduce: return std::make_unique<GemmAllReduce>(world_, shape, options);
      default: return std::make_unique<GemmAllToAll>(world_, shape, options);
    }
  }

  // An epoch's, of those of a graph, after a few that let all ranks begin together.
  double time_on_gpu() {
    constexpr int epochs = 20;
    if (timed_ == nullptr) {
      const auto queue = [&] { call(*operator_, a_.get(), b_.get(), out_.get(), stream_); };
      queue();
      operator_->synchronize(stream_);
      lead_ = std::make_unique<Calls>(stream_, 2, queue);
      timed_ = std::make_unique<Calls>(stream_, epochs, queue);
      world_.barrier();
    }
    for (cudaEvent_t& event : events_)
      if (event == nullptr) expect(cudaEventCreate(&event));
    lead_->launch();
    expect(cudaEventRecord(events_[0], stream_));
    timed_->launch();
    expect(cudaEventRecord(events_[1], stream_));
    operator_->synchronize(stream_);
    float milliseconds = 0;
    expect(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
    return 1e3 * milliseconds / epochs;
  }

  double time_calls() {
    constexpr int calls = 4;  // fewer than epochs of libraries that may be queued, so that none waits for the GPU
    for (int i = 0; i < 2; ++i) call(*operator_, a_.get(), b_.get(), out_.get(), stream_);
    operator_->synchronize(stream_);
    world_.barrier();
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call(*operator_, a_.get(), b_.get(), out_.get(), stream_);
    const double took = microseconds_since(begin) / calls;
    operator_->synchronize(stream_);
    return took;
  }

  World& world_;
  const std::vector<Job>& jobs_;
  CudaOptions options_;
  bool host_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t events_[2]{};
  std::unique_ptr<GemmOperator> operator_;
  std::unique_ptr<Calls> lead_, timed_;
  std::shared_ptr<void> a_, b_, out_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr,
                 "usage: versions JOBS.json RANKS time|host   (ranks share one GPU; compare.py writes the jobs)\n");
    return 2;
  }
  try {
    const int ranks = std::atoi(argv[2]);
    std::ifstream file(argv[1]);
    std::vector<Job> jobs;
    for (const Json& json : Json::parse(file)) jobs.push_back(job_of(json, ranks));
    CudaOptions options;
    options.ranks_per_gpu = ranks;
    return run_threads(ranks, {.heap_bytes = 1 << 20, .wait_limit = 30}, [&](World& world) {
      Rank(world, jobs, options, std::string(argv[3]) == "host").obey();
      return 0;
    });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "versions: %s\n", error.what());
    return 3;
  }
}
