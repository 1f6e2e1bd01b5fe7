// What an operator costs the host: once for a shape never seen (choosing what to run, making one rank's tasks, placing
// the plan, translating them; on GPUs the whole operator), and at each call.
//
//   dispatch [RANKS]             RANKS: of the plans, and processes where there are GPUs for them (default 4)
//   dispatch RANKS OP M N K      one number: microseconds on the host of that shape, the process's first
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/tables/translate.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "plan/task_stream.hpp"
#include "program/measure/turns.hpp"
#include "program/nccl_environment.hpp"
#include "program/run_device.hpp"
#include "runtime/cuda/device_memory.hpp"
#include "support/operators.hpp"

namespace {

using namespace imbrex;
using Clock = std::chrono::steady_clock;

const choose::GpuKind gpus{"NVIDIA H200", 9};

struct Layer {
  Operator op;
  std::int64_t n, k;
};

// Layers of the tuning tables, then one that is in none.
constexpr Layer layers[] = {{Operator::all_gather_gemm, 57344, 8192},  {Operator::gemm_reduce_scatter, 8192, 28672},
                            {Operator::gemm_all_reduce, 12288, 49152}, {Operator::gemm_all_to_all, 8192, 7168},
                            {Operator::all_gather_gemm, 27648, 5120},  {Operator::gemm_reduce_scatter, 5120, 13824}};
constexpr std::int64_t rows[] = {16, 256, 1024, 4096, 8192, 16384};

double microseconds(const std::function<void()>& f) {
  const auto begin = Clock::now();
  f();
  return std::chrono::duration<double>(Clock::now() - begin).count() * 1e6;
}

// The parts of what a shape costs, in microseconds. Memory for tables is an executor's: touched before any shape.
struct Stages {
  double choose = 0, make = 0, survey = 0, translate = 0;
  double sum() const { return choose + make + survey + translate; }
};

Stages take_stages(const Problem& problem, cuda::TableMemory& memory, plan::Candidate& chosen, std::size_t& tasks) {
  Stages stages;
  stages.choose = microseconds([&] { chosen = choose::choose_gpu_candidate(problem, {}, {}, gpus); });
  std::unique_ptr<plan::TaskStream> stream;
  stages.make = microseconds([&] { stream = plan::make_rank_tasks(problem, chosen.strategy, chosen.knobs, 0); });
  std::optional<cuda::Surveyed> surveyed;
  stages.survey = microseconds([&] { surveyed.emplace(cuda::survey(*stream, 0)); });
  if (chosen.strategy != Strategy::fused) {
    const auto plan = stream->whole();
    tasks = count_tasks(*plan);
    // As an execution does, so that all ranks refuse alike.
    stages.translate = microseconds([&] {
      for (int rank = 0; rank < problem.ranks; ++rank) cuda::library_program(*plan, rank);
    });
    return stages;
  }
  tasks = surveyed->tables.sizes().tasks;
  const int cluster = chosen.knobs.cluster == 1 ? 1 : 2;
  cuda::RankTable table;
  stages.translate = microseconds([&] {
    table = cuda::translate(*stream, surveyed->tables, surveyed->layout, 0, {}, 0,
                            {chosen.knobs.tile_m, chosen.knobs.tile_n, cluster, true}, memory.take());
  });
  memory.give_back(std::move(table));
  return stages;
}

// What a process pays for its first shape, except reading the tables of what was measured: printed for the parent.
int print_first_shape(const Problem& problem) {
  cuda::TableMemory memory;
  Problem other = problem;
  other.m = 16;
  choose::choose_gpu_candidate(other, {}, {}, gpus);
  plan::Candidate chosen;
  std::size_t tasks = 0;
  fmt::print("{}\n", take_stages(problem, memory, chosen, tasks).sum());
  return 0;
}

// Times in a fresh process, a few of them.
double cold(const Problem& problem) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  std::vector<double> all;
  for (int i = 0; i < 5; ++i) {
    const std::string command =
        fmt::format("'{}' {} {} {} {} {}", self, problem.ranks, name_of(problem.op), problem.m, problem.n, problem.k);
    FILE* output = popen(command.c_str(), "r");
    double us = 0;
    IMBREX_EXPECTS(output != nullptr && std::fscanf(output, "%lf", &us) == 1 && pclose(output) == 0, "{}: it failed",
                   command);
    all.push_back(us);
  }
  return program::median(all);
}

// Each stage's median over some repeats.
void print_host_stages(const Problem& problem, cuda::TableMemory& memory) {
  std::vector<double> choose, make, survey, translate, whole;
  plan::Candidate chosen;
  std::size_t tasks = 0;
  for (int i = 0; i < 5; ++i) {
    const Stages stages = take_stages(problem, memory, chosen, tasks);
    choose.push_back(stages.choose);
    make.push_back(stages.make);
    survey.push_back(stages.survey);
    translate.push_back(stages.translate);
    whole.push_back(microseconds([&] { static_cast<void>(make_plan(problem, chosen.strategy, chosen.knobs)); }));
  }
  const Stages stages{program::median(choose), program::median(make), program::median(survey),
                      program::median(translate)};
  fmt::print("{:19} {:6} {:6} {:6} {:10} {:7} {:9.0f} {:9.0f} {:9.0f} {:9.0f} {:9.0f} {:9.0f} {:9.0f}\n",
             name_of(problem.op), problem.m, problem.n, problem.k, name_of(chosen.strategy), tasks, stages.choose,
             stages.make, stages.survey, stages.translate, stages.sum(), cold(problem), program::median(whole));
}

// Host time of making an operator, and of a call that is queued.
struct Costs {
  double made = 0, call = 0;
};

Costs costs_on_gpus(World& world, const Problem& p) {
  constexpr int calls = 32;
  std::unique_ptr<GemmOperator> op;
  OperatorOptions options;
  options.device = Device::cuda;
  options.cuda.heap_bytes = std::size_t{8} << 30;
  world.barrier();
  Costs costs;
  costs.made = microseconds([&] { op = test::make_operator(world, p.op, {p.m, p.n, p.k, p.type}, options); });
  const auto bytes = [&](std::size_t i) { return op->operands()[i].bytes(); };
  const runtime::DeviceMemory a(bytes(0)), b(bytes(1)), out(bytes(2));
  const Operand operands[] = {op->operand("a", a.get()), op->operand("b", b.get()), op->operand("out", out.get())};
  for (int round = 0; round < 3; ++round) {
    world.barrier();
    costs.call = microseconds([&] {
                   for (int i = 0; i < calls; ++i) op->run(operands);
                 }) /
                 calls;
    op->synchronize();
  }
  std::vector<Costs> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&costs, all.data(), sizeof costs);
  for (const Costs& c : all) costs = {std::max(costs.made, c.made), std::max(costs.call, c.call)};
  return costs;
}

int on_gpus(World& world) {
  if (world.rank() == 0)
    fmt::print(
        "\noperators on GPUs (us of the slowest rank; again: N a little larger, so that every kernel is loaded)\n"
        "{:19} {:>6} {:>6} {:>6} {:>9} {:>9} {:>9}\n",
        "operator", "M", "N", "K", "made", "again", "a call");
  for (const Layer& layer : layers)
    for (const std::int64_t m : rows) {
      Problem p{layer.op, m, layer.n, layer.k, world.size(), Type::bf16};
      const Costs first = costs_on_gpus(world, p);
      p.n += 128 * world.size();
      const Costs again = costs_on_gpus(world, p);
      if (world.rank() == 0) {
        fmt::print("{:19} {:6} {:6} {:6} {:9.0f} {:9.0f} {:9.2f}\n", name_of(p.op), m, layer.n, layer.k, first.made,
                   again.made, again.call);
        std::fflush(stdout);
      }
    }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  program::set_nccl_environment();
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  if ((argc > 2 && argc != 6) || ranks < 1 || ranks > max_ranks) {
    fmt::print(stderr, "dispatch [RANKS [OP M N K]]: RANKS is 1 to {}\n", max_ranks);
    return 2;
  }
  try {
    if (argc == 6)
      return print_first_shape(
          {parse_operator(argv[2]), std::atoll(argv[3]), std::atoll(argv[4]), std::atoll(argv[5]), ranks, Type::bf16});
    fmt::print(
        "on the host (us, medians of 5; tasks of rank 0; survey: layout; once: their sum, cold: the same of "
        "a process's first shape; all: making all ranks' plan)\n"
        "{:19} {:>6} {:>6} {:>6} {:10} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
        "operator", "M", "N", "K", "strategy", "tasks", "choose", "make", "survey", "translate", "once", "cold", "all");
    cuda::TableMemory memory;
    for (const Layer& layer : layers)
      for (const std::int64_t m : rows) print_host_stages({layer.op, m, layer.n, layer.k, ranks, Type::bf16}, memory);
    std::fflush(stdout);
    choose::GpuKind found;
    if (const std::string refusal = program::refusal_of_ranks(ranks, false, true, found); !refusal.empty()) {
      fmt::print("\nnothing on GPUs: {}\n", refusal);
      return 0;
    }
    return run_processes(ranks, {.heap_bytes = 1 << 20}, on_gpus);
  } catch (const Error& error) {
    fmt::print(stderr, "dispatch: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
