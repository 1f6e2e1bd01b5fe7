#include "simulator/fit.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>

#include <fmt/format.h>

namespace imbrex::bench {
namespace {

double simulate(const Plan& plan, const Machine& machine) {
  return make_simulator(machine)->prepare(plan)->run({}).seconds;
}

// What each rank multiplies, as a problem of one rank.
Problem gemm_of(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  return {Operator::gemm_all_to_all, shapes.product.rows, shapes.product.cols, shapes.depth, 1, problem.type};
}

Knobs knobs_of(const TileRate& tile) {
  Knobs knobs;
  knobs.tile_m = tile.tile_m;
  knobs.tile_n = tile.tile_n;
  return knobs;
}

// cuBLAS for the whole product of a rank, and NCCL before or behind it. Not make_plan's `sequential`, which may cut its
// tiles where the ranks' parts meet: cuBLAS does not know of them.
Plan library_plan(const Problem& problem, const Knobs& knobs, bool collective) {
  const RankShapes shapes = shapes_of(problem);
  const bool gather = problem.op == Operator::all_gather_gemm;
  const CollectiveKind kind = gather                                        ? CollectiveKind::all_gather
                              : problem.op == Operator::gemm_reduce_scatter ? CollectiveKind::reduce_scatter
                                                                            : CollectiveKind::all_reduce;
  const Plan gemm = make_plan(gemm_of(problem), Strategy::sequential, knobs);
  std::vector<Task> tiles;
  for (const Queue& queue : gemm.ranks.front().queues)
    for (const Task& task : queue.tasks)
      if (std::holds_alternative<Tile>(task.work)) tiles.push_back({task.work, {}, {}});
  Plan plan = gemm;
  plan.problem = problem;
  plan.ranks.clear();
  const int moved = static_cast<int>(plan.buffers.size());
  const Extent whole = gather ? Extent{problem.m, problem.k} : shapes.product;
  plan.buffers.push_back({"moved", BufferRole::workspace, Layout::row_major, problem.type, whole.rows, whole.cols, 2});
  for (int rank = 0; rank < problem.ranks; ++rank) {
    RankPlan own{1, {{Engine::compute, 0, tiles}, {Engine::library, 0, {}}}};
    for (Task& task : own.queues[0].tasks) {
      Tile& tile = std::get<Tile>(task.work);
      tile.a.rank = tile.b.rank = rank;
      for (Store& store : tile.stores) store.to.rank = rank;
      if (collective && gather) task.waits = {{0}};
      if (collective && !gather) task.posts = {{rank, 0}};
    }
    const Region all{rank, moved, 0, 0, whole.rows, whole.cols};
    const Region part{
        rank, moved, 0, 0, kind == CollectiveKind::all_reduce ? whole.rows : whole.rows / problem.ranks, whole.cols};
    Task task{Collective{kind, 0, gather ? part : all, gather ? all : part}, {}, {}};
    if (gather)
      task.posts = {{rank, 0}};
    else
      task.waits = {{0, static_cast<std::uint32_t>(tiles.size())}};
    if (collective) own.queues[1].tasks = {task};
    plan.ranks.push_back(own);
  }
  return plan;
}

double gemm_seconds(const Problem& gemm, const TileRate& tile, const Machine& machine) {
  return simulate(library_plan(gemm, knobs_of(tile), false), machine);
}

// Tiles taller than the matrix waste most of their products; narrow ones never win on large matrices, where
// simulating them would take longest.
bool plausible(const Problem& gemm, const TileRate& tile) {
  if (gemm.m <= 64) return tile.tile_m <= 64;
  return tile.tile_m > 64 || gemm.m * gemm.n <= 1024 * 4096;
}

const TileRate& best_tile(const Problem& gemm, const Machine& machine, double& seconds) {
  const TileRate* best = nullptr;
  for (const TileRate& tile : machine.tiles) {
    if (!plausible(gemm, tile)) continue;
    const double time = gemm_seconds(gemm, tile, machine);
    if (best != nullptr && time >= seconds) continue;
    best = &tile;
    seconds = time;
  }
  return best != nullptr ? *best : machine.tiles.front();
}

// Mean of squared log ratios: relative errors of short and long calls count alike.
double misfit(const std::vector<Row>& rows, const Machine& machine) {
  std::map<std::string, double> seen;  // operators share GEMM shapes
  double sum = 0;
  for (const Row& row : rows) {
    const Problem gemm = gemm_of(row.problem);
    double seconds = 0;
    const auto [found, added] =
        seen.try_emplace(std::to_string(gemm.m) + ' ' + std::to_string(gemm.n) + ' ' + std::to_string(gemm.k));
    if (added) {
      best_tile(gemm, machine, seconds);
      found->second = seconds;
    }
    const double error = std::log(found->second / row.gemm);
    sum += error * error;
  }
  return sum / static_cast<double>(rows.size());
}

struct Parameter {
  const char* name;
  std::function<Constant&(Machine&)> of;
  double low, high, step;  // step: first factor tried
};

// Efficiencies of the smaller tiles hang together: a tile of half the area moves more operand bytes a product.
std::vector<Parameter> parameters(const Machine& machine) {
  std::vector<Parameter> list{
      {"sm_rate", [](Machine& m) -> Constant& { return m.sm_rate[Type::bf16]; }, 5e12, 7.5e12, 1.04},
      {"memory_bandwidth", [](Machine& m) -> Constant& { return m.memory_bandwidth; }, 3.3e12, 4.8e12, 1.05},
      {"sm_memory_bandwidth", [](Machine& m) -> Constant& { return m.sm_memory_bandwidth; }, 4e10, 1.27e11, 1.1},
      {"sustained_ratio", [](Machine& m) -> Constant& { return m.sustained_ratio; }, 0.7, 1, 1.04},
      {"sustained_onset", [](Machine& m) -> Constant& { return m.sustained_onset; }, 5e-5, 5e-3, 1.5},
      {"launch_gap", [](Machine& m) -> Constant& { return m.launch_gap; }, 5e-7, 4e-6, 1.3}};
  for (std::size_t i = 0; i < machine.tiles.size(); ++i) {
    list.push_back({"efficiency", [i](Machine& m) -> Constant& { return m.tiles[i].efficiency; }, 0.4, 1, 1.04});
    list.push_back({"prologue", [i](Machine& m) -> Constant& { return m.tiles[i].prologue; }, 2e-7, 3e-6, 1.4});
  }
  return list;
}

// The library's curve through the fit rows' own measured times, rows of equal bytes averaged, made monotonic.
Curve fit_curve(const std::vector<Row>& rows, Operator op, const std::string& from) {
  std::map<double, std::pair<double, int>> by_bytes;
  for (const Row& row : rows) {
    if (row.problem.op != op || row.library <= 0) continue;
    const RankShapes shapes = shapes_of(row.problem);
    const double whole = op == Operator::all_gather_gemm
                             ? static_cast<double>(row.problem.m) * static_cast<double>(row.problem.k)
                             : static_cast<double>(shapes.product.rows) * static_cast<double>(shapes.product.cols);
    const double ranks = row.problem.ranks;
    auto& [sum, count] = by_bytes[whole * static_cast<double>(size_of(row.problem.type)) * (ranks - 1) / ranks];
    sum += row.library;
    ++count;
  }
  Curve curve{{}, Provenance::fitted, from};
  for (const auto& [bytes, total] : by_bytes) {
    double seconds = std::round(total.first / total.second * 1e9) / 1e9;
    if (!curve.points.empty()) seconds = std::max(seconds, curve.points.back().seconds);
    curve.points.push_back({bytes, seconds});
  }
  return curve;
}

// To four digits, so that the file stays readable.
double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

}  // namespace

Prediction predict(const Row& row, const Machine& machine) {
  Prediction result;
  const TileRate& tile = best_tile(gemm_of(row.problem), machine, result.gemm);
  result.tile_m = tile.tile_m;
  result.tile_n = tile.tile_n;
  result.seconds = simulate(library_plan(row.problem, knobs_of(tile), true), machine);
  return result;
}

// Coordinate search with shrinking steps: slow, but it needs no derivatives of a function with waves in it.
Machine fit(const std::vector<Row>& all, Machine machine) {
  std::vector<Row> rows;
  for (const Row& row : all)
    if (row.fit && row.problem.op != Operator::gemm_all_reduce) rows.push_back(row);
  const std::string from = "fitted on the even rows of bench/data/baseline-4xh200.json by bench/simulator";
  machine.all_gather = fit_curve(rows, Operator::all_gather_gemm, from);
  machine.reduce_scatter = fit_curve(rows, Operator::gemm_reduce_scatter, from);

  auto list = parameters(machine);
  double best = misfit(rows, machine);
  for (int round = 0; round < 5; ++round) {
    std::fprintf(stderr, "round %d: root mean square error %.2f %%\n", round, 100 * std::sqrt(best));
    for (Parameter& parameter : list) {
      bool moved = false;
      for (const double factor : {parameter.step, 1 / parameter.step}) {
        for (int tries = 0; tries < 4; ++tries) {
          Machine candidate = machine;
          double& value = parameter.of(candidate).value;
          const double next = std::clamp(rounded(value * factor), parameter.low, parameter.high);
          if (next == value) break;
          value = next;
          const double score = misfit(rows, candidate);
          if (score >= best * (1 - 1e-4)) break;
          best = score;
          parameter.of(candidate).source = Provenance::fitted;
          parameter.of(candidate).from = from;
          machine = candidate;
          moved = true;
        }
        if (moved) break;
      }
      if (!moved) parameter.step = std::sqrt(parameter.step);
    }
  }
  machine.sm_rate[Type::fp16] = {machine.sm_rate[Type::bf16].value, Provenance::derived,
                                 "as bf16: the same tensor core rate"};
  std::fprintf(stderr, "fitted: root mean square error %.2f %%\n", 100 * std::sqrt(best));
  return machine;
}

}  // namespace imbrex::bench
