// Times GEMMs alone (own kernel, cuBLAS) and fused operators (own plans, cuBLAS then NCCL) in turn, within one run, on
// random data; the slowest rank counts; medians of rounds; JSON on standard output.
//   gpu_overlap [--ranks R] [--rounds N] [--ops ...] [--m ...] [--nets ...] [--parts]
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
  std::function<void(Plan&)> edit;  // for parts of a plan that are timed alone
};

struct Shape {
  const char* kernel;
  std::int64_t tile_m, tile_n;
};
constexpr Shape ping{"pingpong 128x128 cluster 2", 128, 128}, ping1{"pingpong 128x128 cluster 1", 128, 128},
    ping_narrow{"pingpong 128x64 cluster 1", 128, 64}, ping_low{"pingpong 64x128 cluster 1", 64, 128},
    ping_small{"pingpong 64x64 cluster 1", 64, 64}, coop{"cooperative 128x256 cluster 2", 128, 256},
    coop1{"cooperative 128x256 cluster 1", 128, 256}, coop224{"cooperative 128x224 cluster 2", 128, 224},
    coop224_1{"cooperative 128x224 cluster 1", 128, 224};

using Change = std::function<void(Knobs&)>;

class Variants {
 public:
  explicit Variants(const Problem& p) : problem_(p) {}

  void add(const Shape& shape, const std::string& name, const Change& change,
           const std::function<void(Plan&)>& edit = {}) {
    Knobs k;
    k.tile_m = shape.tile_m;
    k.tile_n = shape.tile_n;
    k.transport = Transport::store;
    change(k);
    list.push_back({fmt::format("{}, {}", shape.kernel, name), shape.kernel, k, edit});
  }

  std::vector<Variant> list;

 private:
  const Problem& problem_;
};

// The plan with only its products and stores, as if nobody had to wait or to be told.
void without_signals(Plan& plan) {
  for (RankPlan& rank : plan.ranks)
    for (Queue& queue : rank.queues) {
      if (queue.engine != Engine::compute) queue.tasks.clear();
      for (Task& task : queue.tasks) task.waits.clear(), task.posts.clear();
      std::erase_if(queue.tasks, [](const Task& task) { return std::holds_alternative<Transfer>(task.work); });
    }
}
// Besides, nothing is added.
void without_sums(Plan& plan) {
  without_signals(plan);
  for (RankPlan& rank : plan.ranks)
    for (Queue& queue : rank.queues)
      for (Task& task : queue.tasks)
        if (auto* tile = std::get_if<Tile>(&task.work)) tile->adds.clear(), tile->own = 0;
}
// The plan without signals, where every store stays on its rank.
void without_wire(Plan& plan) {
  without_signals(plan);
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
    for (Queue& queue : plan.ranks[rank].queues)
      for (Task& task : queue.tasks)
        if (auto* tile = std::get_if<Tile>(&task.work))
          for (Store& store : tile->stores) store.to.rank = static_cast<int>(rank);
}

std::vector<Variant> variants(const Problem& p, bool parts) {
  Variants v(p);
  const Change nothing = [](Knobs&) {};
  if (p.ranks == 1) {
    for (const Shape& s : {ping, ping1, ping_narrow, ping_low, ping_small, coop, coop1, coop224, coop224_1})
      if (p.m > 64 || s.tile_m == 64 || &s == &ping) v.add(s, "", nothing);
    if (parts)
      for (const Shape& s : {ping, coop})
        for (int group : {2, 4, 16}) v.add(s, fmt::format("group {}", group), [=](Knobs& k) { k.group = group; });
    return v.list;
  }
  const std::int64_t shard = p.m / p.ranks;
  if (p.op == Operator::all_gather_gemm) {
    const auto moved = [](Transport transport, TileOrder order, int group, int shift, int slices = 1) {
      return [=](Knobs& k) {
        k.transport = transport, k.order = order, k.group = group, k.own_shift = shift, k.k_slices = slices;
      };
    };
    constexpr int first = 1 << 20;  // own tiles before all others
    const auto major = TileOrder::owner_major, column = TileOrder::column_major;
    const auto store = Transport::store, push = Transport::push;
    const Change spanning = [](Knobs& k) { k.span_shards = true, k.order = TileOrder::column_major; };
    if (shard < 128) {
      if (p.m <= 64)
        for (const Shape& s : {ping_small, ping_low}) v.add(s, "store, spanning", spanning);
      else
        for (const Shape& s : {ping_narrow, ping1, ping, coop224_1, coop224}) v.add(s, "store, spanning", spanning);
    } else if (shard <= 256) {
      for (const Shape& s : {ping, coop, coop224}) {
        v.add(s, "store, columns", moved(store, column, 8, 0));
        v.add(s, "store, columns, 4 slices", moved(store, column, 8, 0, 4));
        if (shard == 256) v.add(s, "store, own first", moved(store, column, 8, first));
        if (shard == 256) v.add(s, "push, own first", moved(push, column, 8, first));
      }
      v.add(coop224_1, "store, columns", moved(store, column, 8, 0));
      v.add(coop224_1, "store, own first", moved(store, column, 8, first));
      v.add(coop1, "store, own first", moved(store, column, 8, first));
    } else {
      for (const Shape& s : {ping, coop, coop224}) {
        v.add(s, "push, group 8", moved(push, major, 8, 0));
        v.add(s, "push, group 2", moved(push, major, 2, 0));
        v.add(s, "push, own first", moved(push, column, 4, first));
      }
      if (shard == 512) v.add(ping, "store, own first", moved(store, column, 4, first));
    }
    if (parts) v.add(ping, "product alone", shard < 128 ? spanning : moved(push, major, 8, 0), without_signals);
    return v.list;
  }
  const auto columns = [](int group, int shift) {
    return [=](Knobs& k) { k.order = TileOrder::column_major, k.group = group, k.own_shift = shift; };
  };
  const auto name = [](int group, int shift) { return fmt::format("columns, group {}, shift {}", group, shift); };
  const Change spanning = [](Knobs& k) { k.span_shards = true, k.reducer = Reducer::tail; };
  const Change one_shot = [](Knobs& k) { k.one_shot = true, k.reducer = Reducer::tail; };
  if (p.op == Operator::gemm_all_reduce && p.m <= 256)
    for (const Shape& s : {ping_small, ping_low, ping_narrow}) {
      v.add(s, "one shot", one_shot);
      v.add(s, "", nothing);
    }
  if (shard < 128 && p.op != Operator::gemm_all_reduce) {
    for (const Shape& s : {ping_small, ping_low}) v.add(s, "spanning", spanning);
    if (p.m > 64)
      for (const Shape& s : {ping_narrow, ping1, ping}) v.add(s, "spanning", spanning);
  } else if (shard <= 256) {
    for (int shift : {0, 8, 24})
      for (const Shape& s : {ping, ping1, coop, coop1}) v.add(s, name(8, shift), columns(8, shift));
    v.add(ping_narrow, name(8, 0), columns(8, 0));
  } else {
    v.add(ping, "owner_major", nothing);
    for (int group : {2, 4, 8})
      for (int shift : {0, 4, 12}) v.add(ping, name(group, shift), columns(group, shift));
    v.add(coop, name(4, 4), columns(4, 4));
  }
  if (parts && shard >= 128) {
    v.add(ping, "columns, no signals", columns(4, 4), without_signals);
    v.add(ping, "columns, no wire", columns(4, 4), without_wire);
    v.add(ping, "columns, no sums", columns(4, 4), without_sums);
    v.add(ping, "columns, no wire, no sums", columns(4, 4), [](Plan& plan) { without_wire(plan), without_sums(plan); });
  }
  return v.list;
}

class Bench {
 public:
  Bench(World& world, int rounds, bool parts) : world_(world), rounds_(rounds), parts_(parts) {
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
    const auto list = variants(p, parts_);
    for (const Variant& v : list) {
      try {
        Plan plan = make_plan(p, Strategy::fused, v.knobs);
        if (v.edit) v.edit(plan);
        executions.push_back(prepare(plan, v.kernel));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_input) throw;
        continue;
      }
      auto* e = &dynamic_cast<cuda::StreamExecution&>(*executions.back());
      candidates.push_back({v.name, e->stream(),
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
  // The kernel is an option of the executor.
  std::unique_ptr<Execution> prepare(const Plan& plan, const std::string& kernel) {
    auto& executor = executors_[kernel];
    if (executor == nullptr)
      executor = make_cuda_executor(world_, {.heap_bytes = std::size_t{4} << 30, .kernel = kernel});
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
  bool parts_;
  bench::GateArgs gate_{};
  Memory gate_flags_;
  std::map<std::string, std::unique_ptr<Executor>> executors_;
  cudaStream_t stream_ = nullptr;
  cublasHandle_t blas_ = nullptr;
  Memory workspace_;
};

// The layers of bench/data/baseline-4xh200.json.
struct Layers {
  const char* name;
  std::int64_t hidden, intermediate;  // all-gather: N = intermediate, K = hidden; the others: the reverse
};
constexpr Layers networks[] = {
    {"llama8b", 4096, 28672}, {"llama70b", 8192, 57344}, {"gpt3", 12288, 49152}, {"n8192", 8192, 8192}};

std::vector<Problem> problems(int ranks, const std::vector<std::string>& ops, const std::vector<std::int64_t>& sizes,
                              const std::vector<std::string>& nets) {
  std::vector<Problem> list;
  for (const Layers& net : networks) {
    if (!nets.empty() && std::find(nets.begin(), nets.end(), net.name) == nets.end()) continue;
    // The second layer's K is half the first layer's N where a gate halves it.
    const std::int64_t second_k = std::string(net.name).starts_with("llama") ? net.intermediate / 2 : net.intermediate;
    for (const std::string& op : ops)
      for (const std::int64_t m : sizes) {
        if (std::string(net.name) == "n8192" && m != 8192) continue;
        for (Operator o : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                           Operator::gemm_all_to_all}) {
          if (name_of(o) != op) continue;
          Problem p{o, m, net.hidden, second_k, ranks, Type::bf16};
          if (o == Operator::all_gather_gemm) p.n = net.intermediate, p.k = net.hidden;
          if (o == Operator::gemm_all_to_all) p.k = second_k / 4;
          list.push_back(p);
        }
        // One rank's product alone, of both layers.
        if (op == "gemm") {
          list.push_back({Operator::gemm_reduce_scatter, m, net.intermediate / 4, net.hidden, 1, Type::bf16});
          list.push_back({Operator::gemm_reduce_scatter, m, net.hidden, second_k / 4, 1, Type::bf16});
        }
      }
  }
  return list;
}

}  // namespace
}  // namespace imbrex

int main(int argc, char** argv) {
  using namespace imbrex;
  CLI::App app{"Times fused operators against cuBLAS and NCCL"};
  int ranks = 1, rounds = 9;
  bool parts = false;
  std::vector<std::string> ops{"gemm"}, nets;
  std::vector<std::int64_t> sizes{512, 2048, 8192};
  app.add_option("--ranks", ranks, "GPUs");
  app.add_option("--rounds", rounds, "samples of each candidate");
  app.add_option("--ops", ops, "operators, or gemm (with --ranks 1)");
  app.add_option("--m", sizes, "rows");
  app.add_option("--nets", nets, "layers of these networks; default: all");
  app.add_flag("--parts", parts, "also time parts of plans: without signals, without the wire");
  CLI11_PARSE(app, argc, argv);
  // Multicast stays off, whatever the environment says.
  setenv("NCCL_NVLS_ENABLE", "0", 1);
  nlohmann::json rows;
  const int code = run_threads(ranks, {.heap_bytes = 1 << 20, .wait_limit = 20}, [&](World& world) {
    Bench bench(world, rounds, parts);
    for (const Problem& p : problems(ranks, ops, sizes, nets)) {
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
