// What the gathered A as an output costs an AllGather+GEMM: ten layers, on ranks that are processes, with it and
// without it in turn. Prints microseconds of the slowest rank, medians, and writes them as JSON.
//
//   gathered_a [RANKS [RANKS_PER_GPU [OUT.json]]]      (default 4 4); several to a GPU: start it under MPS
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "choose/choose_gpu.hpp"
#include "imbrex/error.hpp"
#include "imbrex/file.hpp"
#include "imbrex/world.hpp"
#include "program/measure/operator_of.hpp"
#include "program/measure/random_bytes.hpp"
#include "program/measure/turns.hpp"
#include "program/nccl_environment.hpp"
#include "program/operand_memory.hpp"
#include "runtime/cuda/survey.hpp"

namespace {

using namespace imbrex;

struct Layer {
  std::int64_t n, k;  ///< columns of a rank of four, and of A
};

// First layers of MLPs, gate and up as one or apart, and queries with keys and values, with N/R of 3,584 or more.
constexpr Layer layers[] = {{7168, 4096}, {3584, 4096}, {5504, 4096},  {6912, 5120},  {14336, 8192},
                            {7168, 8192}, {7168, 3584}, {9216, 12288}, {12288, 9216}, {11008, 8192}};
constexpr std::int64_t rows = 2048;
constexpr int rounds = 7, runs = 4;

// One way to run a layer, with memory of its own.
struct Way {
  std::unique_ptr<GemmOperator> op;
  std::unique_ptr<program::OperandMemory> memory;
  std::vector<Operand> operands;
};

double slowest(World& world, double seconds) {
  std::vector<double> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&seconds, all.data(), sizeof seconds);
  return *std::max_element(all.begin(), all.end());
}

int measure(World& world, const std::string& out) {
  const int sharing = world.options().ranks_per_gpu;
  if (sharing > 1) program::take_own_nccl_host(world);
  CudaOptions options;
  options.heap_bytes = std::size_t{1} << 30;
  options.ranks_per_gpu = sharing;
  const choose::GpuKind gpus = choose::kind_of(runtime::survey_gpus_here(), sharing, true);
  if (world.rank() == 0)
    fmt::print("{}, {} ranks, {} to a GPU, M = {}, microseconds\n{:>7} {:>6}  {:>9} {:>9} {:>6}\n", gpus.name,
               world.size(), sharing, rows, "N/R", "K", "without", "with", "ratio");
  std::string json;
  double sum = 0;
  for (const auto& [n, k] : layers) {
    Problem plain{Operator::all_gather_gemm, rows, n * world.size(), k, world.size(), Type::bf16}, gathered = plain;
    gathered.gathered_a = true;
    const program::HostValues values{program::random_bytes(rows / world.size() * k, plain.type, 1),
                                     program::random_bytes(k * n, plain.type, 2)};
    std::vector<Way> ways;
    for (const Problem& problem : {plain, gathered}) {
      const plan::Candidate fused = choose::choose_gpu_candidate(plain, Strategy::fused, {}, gpus);
      Way& way = ways.emplace_back();
      way.op = program::operator_of(world, problem, fused.strategy, fused.knobs, options);
      way.memory = program::device_operands(values, problem, way.op->allocate_output());
      way.operands = way.memory->named();
    }
    const std::vector<double> own = program::timed_in_turn(
        ways.size(), rounds, [&](std::size_t i) { return ways[i].op->time(ways[i].operands, runs); });
    const double without = slowest(world, own[0]) * 1e6, with = slowest(world, own[1]) * 1e6;
    sum += std::log(with / without);
    if (world.rank() == 0) {
      fmt::print("{:7} {:6}  {:9.1f} {:9.1f} {:6.3f}\n", n, k, without, with, with / without);
      std::fflush(stdout);
    }
    json += fmt::format("{}\n  {{\"cols\": {}, \"k\": {}, \"without_us\": {}, \"with_us\": {}, \"ratio\": {}}}",
                        json.empty() ? "" : ",", n, k, without, with, with / without);
    // Operators before their memory, on all ranks together.
    for (Way& way : ways) way.op.reset();
    for (Way& way : ways) way.memory.reset();
  }
  const double mean = std::exp(sum / std::size(layers));
  if (world.rank() != 0) return 0;
  fmt::print("geometric mean {:.4f}\n", mean);
  if (!out.empty())
    write_file(out,
               fmt::format("{{\"gpu\": \"{}\", \"ranks\": {}, \"ranks_per_gpu\": {}, \"rows\": {}, \"geometric_mean\": "
                           "{}, \"layers\": [{}\n]}}\n",
                           gpus.name, world.size(), sharing, rows, mean, json));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  program::set_nccl_environment();
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4, sharing = argc > 2 ? std::atoi(argv[2]) : 4;
  const std::string out = argc > 3 ? argv[3] : "";
  try {
    return run_processes(ranks, {.heap_bytes = 1 << 20, .wait_limit = 30, .ranks_per_gpu = sharing},
                         [&](World& world) { return measure(world, out); });
  } catch (const Error& error) {
    fmt::print(stderr, "gathered_a: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
