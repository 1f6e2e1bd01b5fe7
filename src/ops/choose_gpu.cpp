#include "ops/choose_gpu.hpp"

#include <algorithm>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/ceil_div.hpp"
#include "collectives/cuda/comm.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/translate.hpp"
#include "imbrex/execute.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/ops.hpp"
#include "plan/problem.hpp"
#include "tune/alike.hpp"
#include "tune/kernel_tiles.hpp"
#include "tune/product_records.hpp"
#include "tune/quick_times.hpp"
#include "tune/records.hpp"

namespace imbrex {
namespace {

static_assert(most_own_ranks == static_cast<int>(cuda::max_comm_ranks));

constexpr std::string_view h200 = "NVIDIA H200";

const Machine& four_h200() {
  static const Machine machine = load_machine("4xh200");
  return machine;
}

// What the tables of these GPUs do not know, others of Hopper take from the H200's: tensor cores and links are the
// same. So do numbers of ranks that nobody measured from others: what was measured there is nearer than what is
// simulated for them, and at hand at once.
std::optional<Candidate> measured_choice(const GpuKind& gpus, const Problem& problem,
                                         std::optional<Strategy> strategy) {
  const bool hopper = gpus.major == 9;
  const auto ask = [&](const std::string& gpu, bool other_ranks) {
    return choose_alike(records_of(gpu), problem, strategy, four_h200(), hopper, other_ranks);
  };
  for (const bool other_ranks : {false, true}) {
    if (auto chosen = ask(gpus.name, other_ranks)) return chosen;
    if (!hopper || gpus.name == h200) continue;
    if (auto chosen = ask(std::string(h200), other_ranks)) return chosen;
  }
  return std::nullopt;
}

// A machine of such GPUs, without what they do not run.
Machine machine_for(const Problem& problem, bool hopper) {
  Machine machine = four_h200();
  machine.devices = std::max(machine.devices, problem.ranks);
  if (!hopper) machine.own_one_step = machine.own_two_steps = {};
  if (has_kernel_tiles(problem.type, hopper))
    std::erase_if(machine.tiles, [&](const TileRate& tile) {
      return !has_kernel_tile(problem.type, hopper, tile.tile_m, tile.tile_n);
    });
  return machine;
}

// Of shards of so many rows: the nearest power of two, as a ratio.
std::int64_t typical_shard(std::int64_t rows) {
  std::int64_t power = 1;
  const auto wanted = static_cast<double>(rows) * static_cast<double>(rows);  // of integers, 2^31 rows would overflow
  while (2 * static_cast<double>(power) * static_cast<double>(power) < wanted) power *= 2;
  return power;
}

struct Simulated {
  Candidate candidate;
  double seconds;
};

// All candidates' times, which takes some milliseconds, once in this process.
const std::vector<Simulated>& simulated(const Problem& problem, std::optional<Strategy> strategy, bool hopper,
                                        const Machine& machine) {
  struct Simulation {
    Problem problem;
    std::optional<Strategy> strategy;
    bool hopper;
    std::vector<Simulated> candidates;
  };
  static std::mutex lock;
  static std::list<Simulation> known;
  const std::lock_guard guard(lock);
  for (const Simulation& s : known)
    if (s.problem == problem && s.strategy == strategy && s.hopper == hopper) return s.candidates;
  Simulation s{problem, strategy, hopper, {}};
  const auto simulator = make_simulator(machine);
  for (const Candidate& c : candidates(problem, machine, strategy))
    s.candidates.push_back({c, simulator->prepare(make_plan(problem, c.strategy, c.knobs))->run({}).seconds});
  return known.emplace_back(std::move(s)).candidates;
}

// By what is simulated for shards of a typical number of rows, carried over to those of the problem.
Candidate simulated_choice(const Problem& problem, std::optional<Strategy> strategy, bool hopper) {
  const Machine machine = machine_for(problem, hopper);
  const std::int64_t shard = ceil_div(problem.m, problem.ranks), typical = typical_shard(shard);
  Problem alike = problem;
  alike.m = typical * problem.ranks;
  const auto expected = [&](const Simulated& s) {
    return s.seconds * quick_seconds(problem, s.candidate, machine) / quick_seconds(alike, s.candidate, machine);
  };
  const std::vector<Simulated>& list = simulated(alike, strategy, hopper, machine);
  Candidate chosen = std::min_element(list.begin(), list.end(), [&](const Simulated& x, const Simulated& y) {
                       return expected(x) < expected(y);
                     })->candidate;
  if (std::int64_t& rows = chosen.knobs.comm_rows; rows > 0) rows = ceil_div(shard, ceil_div(typical, rows));
  return chosen;
}

// By what was measured, or else simulated.
Candidate fastest(const Problem& problem, std::optional<Strategy> strategy, const GpuKind& gpus) {
  const std::optional<Candidate> measured = measured_choice(gpus, problem, strategy);
  if (!measured && strategy == Strategy::sequential) return library_sequence(problem);
  if (!measured) return simulated_choice(problem, strategy, gpus.major == 9);
  Candidate found = *measured;
  if (found.knobs.partial != Type::fp32) found.knobs.partial = output_type(problem.type);
  // What was measured may be of another kind of scales; of those a tensor, a tile has one of A.
  if (problem.op == Operator::all_gather_gemm && problem.scales == Scales::tensor) found.knobs.span_shards = false;
  return found;
}

// Whether some kernel on tensor cores takes the operands; if not, fused plans run on the plain one.
bool suits_tensor_cores(const Problem& problem, bool hopper) {
  return has_kernel_tiles(problem.type, hopper) && cuda::refusal_of_tma(problem).empty();
}

// And, with these knobs, the tiles, which begin with a rank's columns.
bool tiles_suit_tensor_cores(const Problem& problem, const Knobs& knobs) {
  return !owns_columns(problem, knobs) || problem.n % (std::int64_t{8} * problem.ranks) == 0;
}

// Knobs that nobody asked for.
Candidate chosen_freely(const Problem& problem, std::optional<Strategy> strategy, const GpuKind& gpus) {
  const bool hopper = gpus.major == 9;
  if (strategy == Strategy::sequential) return library_sequence(problem);
  // The plain kernel is far behind a library's. What it takes of e4m3, cuBLASLt does not.
  const bool may_be_plain = strategy || problem.type == Type::e4m3;
  if (!may_be_plain && !suits_tensor_cores(problem, hopper)) return fastest(problem, Strategy::sequential, gpus);
  Candidate chosen = fastest(problem, strategy, gpus);
  if (chosen.strategy != Strategy::fused) return chosen;
  chosen.knobs = with_kernel_tile(chosen.knobs, problem.type, hopper);
  if (may_be_plain || tiles_suit_tensor_cores(problem, chosen.knobs)) return chosen;
  return fastest(problem, Strategy::sequential, gpus);
}

}  // namespace

GpuKind kind_of(const GpuSurvey& survey) {
  GpuKind kind{survey.gpus.front().name, survey.gpus.front().major};
  for (const Gpu& gpu : survey.gpus) kind.major = std::min(kind.major, gpu.major);
  return kind;
}

Candidate choose_gpu_candidate(const Problem& problem, std::optional<Strategy> strategy,
                               const std::optional<Knobs>& knobs, const GpuKind& gpus) {
  if (!strategy && !cuda::refusal_of_library_bias(problem).empty()) strategy = Strategy::fused;
  if (knobs && strategy) return {*strategy, *knobs};
  const bool hopper = gpus.major == 9;
  if (knobs) {
    const Plan plan = choose_plan(problem, machine_for(problem, hopper), {strategy, knobs, {}});
    return {plan.strategy, plan.knobs};
  }
  Candidate chosen = chosen_freely(problem, strategy, gpus);
  if (chosen.strategy == Strategy::sequential)
    chosen.knobs = with_library_tile(chosen.knobs, records_of(gpus.name).products, problem);
  return chosen;
}

Plan choose_gpu_plan(const Problem& problem, std::optional<Strategy> strategy, const std::optional<Knobs>& knobs,
                     const GpuKind& gpus) {
  const Candidate chosen = choose_gpu_candidate(problem, strategy, knobs, gpus);
  return make_plan(problem, chosen.strategy, chosen.knobs);
}

}  // namespace imbrex
