// Times GEMMs alone (own kernel, cuBLAS) and fused operators (own plans, cuBLAS then NCCL) in turn, within one run, on
// random data; the slowest rank counts; medians of rounds; JSON on standard output.
//   gpu_overlap [--ranks R] [--rounds N]
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#ifdef IMBREX_HAVE_NCCL
#include <nccl.h>
#endif

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "execute/cuda/cuda_execution.hpp"
#include "gate.hpp"
#include "imbrex/execute.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex {
namespace {

constexpr int ops_per_sample = 4;
constexpr double link_bytes_per_second = 370e9;  // usable, per direction

void check_cublas(cublasStatus_t status) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ErrorCode::runtime_failure, fmt::format("cuBLAS: status {}", static_cast<int>(status)));
}
#ifdef IMBREX_HAVE_NCCL
void check_nccl(ncclResult_t status) {
  if (status != ncclSuccess)
    throw Error(ErrorCode::runtime_failure, fmt::format("NCCL: {}", ncclGetErrorString(status)));
}
#endif

struct Free {
  void operator()(void* p) const { cudaFree(p); }
};
using Memory = std::unique_ptr<void, Free>;

// Uniform bf16 in [-1, 1).
Memory random_bf16(std::size_t count, std::uint64_t seed) {
  std::vector<std::uint16_t> host(count);
  for (std::size_t i = 0; i < count; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    host[i] = float_to_bf16(static_cast<float>(static_cast<std::int32_t>(seed >> 32)) * 0x1p-31f);
  }
  void* p = nullptr;
  IMBREX_CUDA_TRY(cudaMalloc(&p, count * 2));
  IMBREX_CUDA_TRY(cudaMemcpy(p, host.data(), count * 2, cudaMemcpyHostToDevice));
  return Memory(p);
}

// Holds a stream until every rank has queued its work.
struct HostGate {
  static inline std::atomic<long> arrived = 0;
  long wanted = 0;
  static void CUDART_CB wait(void* gate) {
    while (arrived.load(std::memory_order_acquire) < static_cast<HostGate*>(gate)->wanted) {
    }
  }
};

struct Candidate {
  std::string name;
  cudaStream_t stream;
  std::function<void()> enqueue;
  std::function<void()> finish;
};

// Microseconds an operation, of the slowest rank.
double sample(World& world, const Candidate& candidate, bench::GateArgs& gpu_gate) {
  ++gpu_gate.number;
  HostGate gate{static_cast<long>(gpu_gate.number) * world.size()};
  cudaEvent_t begin, end;
  IMBREX_CUDA_TRY(cudaEventCreate(&begin));
  IMBREX_CUDA_TRY(cudaEventCreate(&end));
  IMBREX_CUDA_TRY(cudaLaunchHostFunc(candidate.stream, HostGate::wait, &gate));
  // Callbacks of several GPUs end one after another; this lets all streams go at one moment.
  IMBREX_CUDA_TRY(bench::pass_gate(gpu_gate, candidate.stream));
  IMBREX_CUDA_TRY(cudaEventRecord(begin, candidate.stream));
  for (int i = 0; i < ops_per_sample; ++i) candidate.enqueue();
  IMBREX_CUDA_TRY(cudaEventRecord(end, candidate.stream));
  HostGate::arrived.fetch_add(1, std::memory_order_acq_rel);
  candidate.finish();
  IMBREX_CUDA_TRY(cudaEventSynchronize(end));
  float milliseconds = 0;
  IMBREX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin, end));
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  const double mine = static_cast<double>(milliseconds) * 1e3 / ops_per_sample;
  std::vector<double> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&mine, all.data(), sizeof mine);
  return *std::max_element(all.begin(), all.end());
}

struct Variant {
  std::string name, kernel;
  Knobs knobs;
};

std::vector<Variant> variants(const Problem& p) {
  std::vector<Variant> list;
  const auto add = [&](const std::string& name, const std::string& kernel, std::int64_t tile_n, auto&& change) {
    Knobs k;
    k.tile_n = tile_n;
    k.transport = p.op == Operator::all_gather_gemm ? Transport::push : Transport::store;
    change(k);
    list.push_back({name, kernel, k});
  };
  const auto nothing = [](Knobs&) {};
  if (p.ranks == 1) {
    add("pingpong 128x128 x2", "pingpong 128x128 cluster 2", 128, nothing);
    add("pingpong 128x128 x1", "pingpong 128x128 cluster 1", 128, nothing);
    add("cooperative 128x256 x2", "cooperative 128x256 cluster 2", 256, nothing);
    add("cooperative 128x256 x1", "cooperative 128x256 cluster 1", 256, nothing);
    return list;
  }
  if (p.op == Operator::all_gather_gemm) {
    add("pingpong group 8", "pingpong", 128, nothing);
    add("pingpong group 2", "pingpong", 128, [](Knobs& k) { k.group = 2; });
    add("cooperative group 8", "cooperative", 256, nothing);
    add("cooperative group 2", "cooperative", 256, [](Knobs& k) { k.group = 2; });
    return list;
  }
  add("pingpong owner_major", "pingpong", 128, nothing);
  add("pingpong column_major", "pingpong", 128, [](Knobs& k) { k.order = TileOrder::column_major; });
  if (p.m / p.ranks >= 512) add("pingpong parts 4", "pingpong", 128, [](Knobs& k) { k.parts = 4; });
  return list;
}

class Bench {
 public:
  Bench(World& world, int rounds) : world_(world), rounds_(rounds) {
    executors_[""] = make_cuda_executor(world);
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check_cublas(cublasCreate(&blas_));
    check_cublas(cublasSetStream(blas_, stream_));
    void* p = nullptr;
    IMBREX_CUDA_TRY(cudaMalloc(&p, std::size_t{64} << 20));
    workspace_.reset(p);
    check_cublas(cublasSetWorkspace(blas_, p, std::size_t{64} << 20));
    IMBREX_CUDA_TRY(cudaMalloc(&p, bench::max_gate_ranks * sizeof(unsigned)));
    gate_flags_.reset(p);
    IMBREX_CUDA_TRY(cudaMemset(p, 0, bench::max_gate_ranks * sizeof(unsigned)));
    IMBREX_CUDA_TRY(cudaDeviceSynchronize());
    gate_.rank = world.rank();
    gate_.ranks = world.size();
    world.all_gather(&p, gate_.flags, sizeof p);  // threads of one process share addresses
    // Loads the gate's kernel, which must not happen behind a closed gate.
    gate_.number = 1;
    IMBREX_CUDA_TRY(bench::pass_gate(gate_, stream_));
    IMBREX_CUDA_TRY(cudaStreamSynchronize(stream_));
    HostGate::arrived.fetch_add(1);
    world.barrier();
#ifdef IMBREX_HAVE_NCCL
    if (world.size() > 1) {
      ncclUniqueId id{};
      if (world.rank() == 0) check_nccl(ncclGetUniqueId(&id));
      std::vector<ncclUniqueId> all(static_cast<std::size_t>(world.size()));
      world.all_gather(&id, all.data(), sizeof id);
      check_nccl(ncclCommInitRank(&nccl_, world.size(), all.front(), world.rank()));
    }
#endif
  }

  nlohmann::json run(const Problem& p) {
    const RankShapes s = shapes_of(p);
    const auto seed = static_cast<std::uint64_t>(world_.rank()) * 7919 + 1;
    const Memory a = random_bf16(static_cast<std::size_t>(s.a.rows * s.a.cols), seed),
                 b = random_bf16(static_cast<std::size_t>(s.b.rows * s.b.cols), seed + 1);
    const Memory full_a = random_bf16(static_cast<std::size_t>(s.product.rows * s.depth), seed + 2);
    const Memory product = random_bf16(static_cast<std::size_t>(s.product.rows * s.product.cols), seed + 3);
    const Memory out = random_bf16(static_cast<std::size_t>(s.out.rows * s.out.cols), seed + 4);
    const auto gemm = [&](const void* x, void* y) {
      const float one = 1, zero = 0;
      const auto m = static_cast<int>(s.product.rows), n = static_cast<int>(s.product.cols),
                 k = static_cast<int>(s.depth);
      check_cublas(cublasGemmEx(blas_, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b.get(), CUDA_R_16BF, n, x, CUDA_R_16BF,
                                k, &zero, y, CUDA_R_16BF, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    };
    const auto sync = [&] { IMBREX_CUDA_TRY(cudaStreamSynchronize(stream_)); };
    std::vector<Candidate> candidates{{"cublas", stream_, [&] { gemm(full_a.get(), product.get()); }, sync}};
#ifdef IMBREX_HAVE_NCCL
    if (p.ranks > 1)
      candidates.push_back({"cublas+nccl", stream_,
                            [&] { sequential(p, s, a.get(), full_a.get(), product.get(), out.get(), gemm); }, sync});
#endif
    std::vector<std::unique_ptr<Execution>> executions;
    auto list = variants(p);
    if (p.ranks > 1) {
      list.push_back(list.front());
      list.back().name = "no copies, no waits, " + list.back().name;
      list.push_back(list.front());
      list.back().name = "copies alone";
      if (p.op != Operator::all_gather_gemm) list.resize(list.size() - 2);
    }
    for (const Variant& v : list) {
      try {
        Plan plan = make_plan(p, Strategy::fused, v.knobs);
        if (v.name.starts_with("no copies")) plan = only(std::move(plan), Engine::compute);
        if (v.name.starts_with("copies alone")) plan = only(std::move(plan), Engine::copy);
        executions.push_back(prepare(plan, v.kernel));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_input) throw;
        continue;
      }
      auto* e = &dynamic_cast<cuda::CudaExecution&>(*executions.back());
      candidates.push_back({fmt::format("{} ({})", v.name, e->kernel().name), e->stream(),
                            [e, &a, &b, &out] {
                              e->enqueue({a.get(), b.get(), out.get()});
                            },
                            [e] { e->finish(); }});
    }
    // Kernels are loaded at their first use, which would wait for the gate that opens after it.
    for (const Candidate& c : candidates) {
      c.enqueue();
      c.finish();
      world_.barrier();
    }
    std::map<std::string, std::vector<double>> times;
    for (int round = -1; round < rounds_; ++round)
      for (const Candidate& c : candidates) {
        const double us = sample(world_, c, gate_);
        if (round >= 0) times[c.name].push_back(us);
      }
    nlohmann::json row{{"operator", p.ranks == 1 ? "gemm" : std::string(name_of(p.op))},
                       {"m", p.m},
                       {"n", p.n},
                       {"k", p.k},
                       {"ranks", p.ranks}};
    const auto median = [&](const std::string& name) {
      auto v = times[name];
      std::sort(v.begin(), v.end());
      return v[v.size() / 2];
    };
    for (const Candidate& c : candidates) row["us"][c.name] = median(c.name);
    const double ways = p.op == Operator::gemm_all_reduce ? 2 : 1;  // to the owners, and back
    const double wire = p.ranks == 1 ? 0
                                     : ways * static_cast<double>(p.ranks - 1) *
                                           static_cast<double>(p.op == Operator::all_gather_gemm
                                                                   ? s.a.rows * s.a.cols
                                                                   : s.product.rows / p.ranks * s.product.cols) *
                                           2;
    const double roofline = std::max(median("cublas"), wire / link_bytes_per_second * 1e6);
    row["roofline_us"] = roofline;
    for (const Candidate& c : candidates)
      if (c.name != "cublas") row["roofline_fraction"][c.name] = roofline / median(c.name);
    return row;
  }

 private:
  // The parts of an all-gather alone: its copies, and its product on whatever lies in the workspace.
  static Plan only(Plan plan, Engine engine) {
    for (RankPlan& rank : plan.ranks)
      for (Queue& queue : rank.queues) {
        if (queue.engine != engine) queue.tasks.clear();
        for (Task& task : queue.tasks) task.waits.clear();
      }
    return plan;
  }

  // The kernel is an option of the executor.
  std::unique_ptr<Execution> prepare(const Plan& plan, const std::string& kernel) {
    auto& executor = executors_[kernel];
    if (executor == nullptr)
      executor = make_cuda_executor(world_, {.heap_bytes = std::size_t{2} << 30, .kernel = kernel});
    return executor->prepare(plan);
  }

#ifdef IMBREX_HAVE_NCCL
  template <typename Gemm>
  void sequential(const Problem& p, const RankShapes& s, const void* a, void* full_a, void* product, void* out,
                  const Gemm& gemm) {
    if (p.op == Operator::all_gather_gemm) {
      check_nccl(ncclAllGather(a, full_a, static_cast<std::size_t>(s.a.rows * s.a.cols), ncclBfloat16, nccl_, stream_));
      gemm(full_a, product);
      return;
    }
    gemm(a, product);
    const auto count = static_cast<std::size_t>(s.product.rows * s.product.cols);
    if (p.op == Operator::gemm_reduce_scatter)
      check_nccl(ncclReduceScatter(product, out, count / static_cast<std::size_t>(p.ranks), ncclBfloat16, ncclSum,
                                   nccl_, stream_));
    else if (p.op == Operator::gemm_all_reduce)
      check_nccl(ncclAllReduce(product, out, count, ncclBfloat16, ncclSum, nccl_, stream_));
    else
      check_nccl(ncclAlltoAll(product, out, count / static_cast<std::size_t>(p.ranks), ncclBfloat16, nccl_, stream_));
  }
  ncclComm_t nccl_ = nullptr;
#endif

  World& world_;
  int rounds_;
  bench::GateArgs gate_{};
  Memory gate_flags_;
  std::map<std::string, std::unique_ptr<Executor>> executors_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  Memory workspace_;
};

std::vector<Problem> problems(int ranks) {
  const auto gemm = [](std::int64_t m, std::int64_t n, std::int64_t k) {
    return Problem{Operator::gemm_reduce_scatter, m, n, k, 1, Type::bf16};
  };
  if (ranks == 1)
    return {gemm(4096, 12288, 3072), gemm(8192, 8192, 2048), gemm(8192, 8192, 7168), gemm(2048, 14336, 8192),
            gemm(1024, 14336, 8192), gemm(512, 14336, 8192), gemm(2048, 7168, 4096)};
  std::vector<Problem> list;
  const auto ag = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
    list.push_back({Operator::all_gather_gemm, m, n, k, ranks, Type::bf16});
  };
  const auto other = [&](Operator op, std::int64_t m, std::int64_t n, std::int64_t k) {
    list.push_back({op, m, n, k, ranks, Type::bf16});
  };
  for (std::int64_t m : {512, 1024, 2048, 8192}) ag(m, 57344, 8192);
  ag(2048, 28672, 4096);
  ag(8192, 8192, 8192);
  for (std::int64_t m : {512, 1024, 2048, 8192}) other(Operator::gemm_reduce_scatter, m, 8192, 28672);
  other(Operator::gemm_reduce_scatter, 2048, 4096, 14336);
  other(Operator::gemm_reduce_scatter, 8192, 8192, 8192);
  other(Operator::gemm_all_reduce, 2048, 8192, 28672);
  other(Operator::gemm_all_to_all, 2048, 8192, 7168);
  return list;
}

}  // namespace
}  // namespace imbrex

int main(int argc, char** argv) {
  using namespace imbrex;
  CLI::App app{"Times fused operators against cuBLAS and NCCL"};
  int ranks = 1, rounds = 9;
  app.add_option("--ranks", ranks, "GPUs");
  app.add_option("--rounds", rounds, "samples of each candidate");
  CLI11_PARSE(app, argc, argv);
  // Multicast stays off, whatever the environment says.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  nlohmann::json rows;
  const int code = run_threads(ranks, {.heap_bytes = 1 << 20, .wait_limit = 20}, [&](World& world) {
    Bench bench(world, rounds);
    for (const Problem& p : problems(ranks)) {
      const nlohmann::json row = bench.run(p);
      if (world.rank() != 0) continue;
      rows.push_back(row);
      std::fprintf(stderr, "%s\n", row.dump().c_str());
    }
    return 0;
  });
  std::printf("%s\n", rows.dump(1).c_str());
  return code;
}
