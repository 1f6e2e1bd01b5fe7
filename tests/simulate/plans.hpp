// A machine of round numbers, and small plans made by hand.
#pragma once

#include <utility>
#include <vector>

#include "imbrex/advanced/execute.hpp"

namespace imbrex::test {

inline Constant constant(double value) { return {value, Provenance::unverified, "test"}; }

/// No latency, no overhead, no limit but those that a test sets: 4 SMs of 1 Tflop/s, tiles of 128 x 128.
inline Machine ideal_machine() {
  constexpr double unlimited = 1e30;
  Machine m;
  m.name = "ideal";
  m.devices = 64;
  m.sms = constant(4);
  m.memory_bandwidth = m.sm_memory_bandwidth = constant(unlimited);
  m.l2_bytes = constant(0);
  m.sm_rate[Type::bf16] = constant(1e12);
  m.tiles = {{128, 128, constant(1), constant(0), constant(0), {}}};
  m.sustained_ratio = constant(1);
  m.sustained_onset = constant(1);
  m.copy_bandwidth = m.store_sm_bandwidth = m.store_bandwidth = constant(unlimited);
  m.egress_bandwidth = m.ingress_bandwidth = constant(unlimited);
  m.all_gather = m.reduce_scatter = m.all_reduce = m.all_to_all = {{{1, 0}}, Provenance::unverified, "test"};
  return m;
}

/// Seconds of one 128 x 128 tile over `depth` on ideal_machine.
inline double tile_seconds(double depth) { return 2.0 * 128 * 128 * depth / 1e12; }

/// A plan by hand: every rank has one workspace buffer 0 of 4096 x 65536 bf16 and 64 signals.
class Plans {
 public:
  explicit Plans(int ranks) {
    plan.problem = {Operator::gemm_all_to_all, 128 * ranks, 128, 128, ranks, Type::bf16};
    plan.buffers = {{"space", BufferRole::workspace, Layout::row_major, Type::bf16, 4096, 65536, 2}};
    plan.ranks.resize(static_cast<std::size_t>(ranks));
    for (RankPlan& rank : plan.ranks) rank.signals = 64;
  }
  std::vector<Task>& queue(int rank, Engine engine, int workers = 0) {
    auto& queues = plan.ranks[static_cast<std::size_t>(rank)].queues;
    queues.reserve(8);  // the references that this returns stay valid
    queues.push_back({engine, workers, {}, {128, 128}});
    return queues.back().tasks;
  }
  static Region block(int rank, std::int64_t rows, std::int64_t cols, std::int64_t row = 0) {
    return {rank, 0, row, 0, rows, cols};
  }
  static Task tile(int rank, std::int64_t depth, std::vector<Wait> waits = {}, std::vector<Post> posts = {},
                   std::vector<int> targets = {}, std::int64_t rows = 128, std::int64_t cols = 128) {
    Tile work{block(rank, rows, depth), block(rank, depth, cols), {}, 0, {}};
    for (const int target : targets) work.stores.push_back({block(target, rows, cols)});
    return {work, std::move(waits), std::move(posts)};
  }
  /// A library's product of `tiles` blocks of 128 x 128.
  static Task product(int rank, int tiles, std::int64_t depth, std::vector<Post> posts = {}) {
    return {Product{block(rank, 128, depth), block(rank, depth, 128 * tiles), block(rank, 128, 128 * tiles)},
            {},
            std::move(posts)};
  }
  static Task copy(int from, int to, std::int64_t rows, std::int64_t cols, std::vector<Wait> waits = {},
                   std::vector<Post> posts = {}) {
    return {Transfer{block(from, rows, cols), block(to, rows, cols)}, std::move(waits), std::move(posts)};
  }
  static Task signal(std::vector<Wait> waits, std::vector<Post> posts = {}) {
    return {Transfer{}, std::move(waits), std::move(posts)};
  }
  Plan plan;
};

inline Report simulate(const Plan& plan, const Machine& machine, const SimulateOptions& options = {}) {
  return make_simulator(machine, options)->prepare(plan)->run({});
}

}  // namespace imbrex::test
