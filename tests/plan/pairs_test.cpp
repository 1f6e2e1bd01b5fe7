// Which tasks strategies pair, what the checker proves of pairs, and that workers who take what it accepts get through.
#include "plan/pairs.hpp"
#include "plan/small_plans.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <vector>

#include "plan/check/pairs.hpp"
#include "plan/expect_fault.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::compute;
using test::expect_fault;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

Knobs pairs_knobs(Transport transport = Transport::store) {
  Knobs knobs;
  knobs.tile_m = knobs.tile_n = 8;
  knobs.transport = transport;
  return knobs;
}

// By owner, the other rank first: two rows of tiles in two columns, a column after the other.
Plan paired_scatter(int ranks = 2) {
  return make_plan({Operator::gemm_reduce_scatter, 16 * ranks, 16, 256 * ranks, ranks, Type::bf16}, Strategy::fused,
                   pairs_knobs());
}

void clear_pairs(Plan& plan) {
  for (RankPlan& rank : plan.ranks)
    for (Queue& queue : rank.queues)
      for (Task& task : queue.tasks) task.mate = 0;
}

std::vector<int> mates_of(const std::vector<Task>& tasks) {
  std::vector<int> mates;
  for (const Task& task : tasks) mates.push_back(task.mate);
  return mates;
}

// ------------------------------------------------------------------------------------------------ workers in pairs

// Who runs a plan: so many workers for each compute queue, in pairs or not. Tasks do nothing but wait and post. A
// worker takes what stands first; tiles of a pair both wait for what either loads; then each ends by itself.
class PairedRun {
 public:
  PairedRun(const Plan& plan, test::Random& random) : plan_(plan) {
    for (const RankPlan& rank : plan.ranks) {
      seen_.emplace_back(index(rank.signals));
      for (const Queue& queue : rank.queues) {
        const bool one = queue.engine != Engine::compute || random.chance(0.5);
        queues_.push_back({&queue, seen_.size() - 1, random.chance(0.8), one ? 1 : random.between(2, 3)});
        lay_out(queues_.back());
      }
    }
  }

  bool gets_through() {
    for (bool moved = true; moved;) {
      moved = false;
      for (Lane& lane : queues_) moved = step(lane) || moved;
    }
    return std::all_of(queues_.begin(), queues_.end(),
                       [](const Lane& lane) { return lane.next == lane.units.size() && lane.held.empty(); });
  }

 private:
  struct Unit {
    std::vector<const Task*> tasks;
    std::vector<bool> ended{false, false};
  };
  struct Lane {
    const Queue* queue;
    std::size_t rank;
    bool paired;
    std::int64_t workers;
    std::vector<Unit> units{};
    std::size_t next = 0;
    std::vector<std::size_t> held{};  // units that workers have taken
  };

  static void lay_out(Lane& lane) {
    const auto& tasks = lane.queue->tasks;
    std::vector<std::size_t> unit_of(tasks.size());
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (lane.paired && tasks[i].mate != 0) {
        lane.units[unit_of[i - index(tasks[i].mate)]].tasks.push_back(&tasks[i]);
        continue;
      }
      unit_of[i] = lane.units.size();
      lane.units.push_back({{&tasks[i]}});
    }
  }

  bool met(const Lane& lane, const Task& task, bool loads_only) const {
    return std::all_of(task.waits.begin(), task.waits.end(), [&](const Wait& wait) {
      return (loads_only && wait.point != WaitPoint::load) || seen_[lane.rank][index(wait.signal)] >= wait.count;
    });
  }

  bool step(Lane& lane) {
    bool moved = false;
    while (lane.next < lane.units.size() && std::ssize(lane.held) < lane.workers)
      lane.held.push_back(lane.next++), moved = true;
    for (std::size_t number : lane.held) {
      Unit& unit = lane.units[number];
      for (std::size_t i = 0; i < unit.tasks.size(); ++i) {
        const Task& task = *unit.tasks[i];
        const bool beside = unit.tasks.size() == 2 && std::holds_alternative<Tile>(task.work);
        if (unit.ended[i] || !met(lane, task, false) || (beside && !met(lane, *unit.tasks[1 - i], true))) continue;
        for (const Post& post : task.posts) ++seen_[index(post.rank)][index(post.signal)];
        unit.ended[i] = moved = true;
      }
    }
    std::erase_if(lane.held, [&](std::size_t number) {
      const Unit& unit = lane.units[number];
      return std::all_of(unit.ended.begin(), unit.ended.begin() + std::ssize(unit.tasks), [](bool e) { return e; });
    });
    return moved;
  }

  const Plan& plan_;
  std::vector<Lane> queues_;
  std::vector<std::vector<std::uint64_t>> seen_;  // by rank and signal
};

bool gets_through(const Plan& plan, test::Random& random) {
  for (int i = 0; i < 12; ++i)
    if (!PairedRun(plan, random).gets_through()) return false;
  return true;
}

test::RandomCase random_fused(test::Random& random, std::int64_t max_size) {
  auto c = test::random_case(random, {.max_ranks = 4, .max_size = max_size, .bias = true, .e4m3 = true});
  c.strategy = Strategy::fused;
  c.knobs = test::random_knobs(random, c.problem, c.strategy);
  return c;
}

// ------------------------------------------------------------------------------------------------- what is chosen

// By looking ahead: each task that none has taken takes the first one that it may.
std::vector<int> mates_by_looking_ahead(const Plan& plan, const Queue& queue, const std::function<bool(int)>& free) {
  std::vector<int> mates(queue.tasks.size());
  std::vector<bool> taken(queue.tasks.size());
  if (queue.engine != Engine::compute || queue.cluster == ClusterMode::single) return mates;
  for (std::size_t i = 0; i < queue.tasks.size(); ++i) {
    if (taken[i]) continue;
    const plan::PairSide side = plan::side_of(plan, queue.tasks[i]);
    const bool tile = side.kind == plan::PairSide::Kind::tile;
    if (tile && queue.cluster == ClusterMode::share_k) continue;
    bool neighbour = true;
    for (std::size_t j = i + 1; j < queue.tasks.size() && j < i + 96; ++j) {
      if (taken[j]) continue;
      const auto& waits = queue.tasks[j].waits;
      const bool loads = std::all_of(waits.begin(), waits.end(), [&](const Wait& wait) {
        return !tile || wait.point != WaitPoint::load || free(wait.signal);
      });
      if (alike(side, plan::side_of(plan, queue.tasks[j])) && loads && (neighbour || (tile && waits.empty()))) {
        mates[j] = static_cast<int>(j - i);
        taken[j] = true;
        break;
      }
      neighbour = false;
    }
  }
  return mates;
}

TEST(Pairs, EachTaskTakesTheFirstLaterOneThatItMay) {
  test::Random random(test::seed_from_environment());
  int mates = 0, far = 0, waiting = 0;
  for (int i = 0; i < 200; ++i) {
    const auto c = random_fused(random, 1500);
    SCOPED_TRACE(test::describe(c));
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    // Strategies take it that all pulled pieces hang on others.
    const bool pulls =
        c.problem.op == Operator::all_gather_gemm && c.knobs.transport == Transport::pull && c.problem.ranks > 1;
    // By rank and signal: tasks post to it that stand after a wait.
    std::set<std::pair<int, int>> late;
    for (const RankPlan& rank : plan.ranks)
      for (const Queue& queue : rank.queues) {
        bool waited = false;
        for (const Task& task : queue.tasks) {
          waited = waited || !task.waits.empty();
          for (const Post& post : task.posts)
            if (waited) late.insert({post.rank, post.signal});
        }
      }
    for (int r = 0; r < c.problem.ranks; ++r)
      for (const Queue& queue : plan.ranks[index(r)].queues) {
        const std::vector<int> chosen = mates_of(queue.tasks);
        ASSERT_EQ(chosen, mates_by_looking_ahead(plan, queue, [&](int s) { return !pulls && !late.contains({r, s}); }));
        for (std::size_t t = 0; t < chosen.size(); ++t) {
          mates += chosen[t] > 0;
          far += chosen[t] > 1;
          waiting += chosen[t] > 0 && !queue.tasks[t].waits.empty();
        }
      }
  }
  EXPECT_GT(mates, 1000);
  EXPECT_GT(far, 100);
  EXPECT_GT(waiting, 100);
}

TEST(Pairs, ClustersSayWhatIsPaired) {
  Knobs knobs = pairs_knobs();
  const auto mates = [&](Operator op) {
    const Plan plan = make_plan({op, 64, 16, 256, 2, Type::bf16}, Strategy::fused, knobs);
    const auto chosen = mates_of(plan.ranks[0].queues[0].tasks);
    return std::count_if(chosen.begin(), chosen.end(), [](int mate) { return mate != 0; });
  };
  EXPECT_EQ(mates(Operator::gemm_reduce_scatter), 8);
  knobs.cluster = 2;
  EXPECT_EQ(mates(Operator::gemm_reduce_scatter), 8);
  knobs.cluster = 1;
  EXPECT_EQ(mates(Operator::gemm_reduce_scatter), 0);
  knobs.cluster_k = 2;
  EXPECT_EQ(mates(Operator::gemm_reduce_scatter), 0);
  knobs.reducer = Reducer::tail;  // 8 sums
  EXPECT_EQ(mates(Operator::gemm_reduce_scatter), 4);
}

// ------------------------------------------------------------------------------------------------ what is refused

void expect_malformed(const Plan& plan, const std::string& text) { expect_fault(plan, Fault::malformed, text); }

TEST(Pairs, CheckerNamesMatesThatAreNone) {
  Plan plan = paired_scatter();
  EXPECT_EQ(mates_of(compute(plan)), (std::vector<int>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_FALSE(check(plan).has_value());
  for (int mate : {-1, 2, 96, 1 << 30}) {
    compute(plan)[1].mate = mate;
    expect_malformed(plan, "rank 0 queue 0 task 1 (tile): mate " + std::to_string(mate) +
                               ": its pair's first task must be from 1 to 95 tasks before it in its queue");
  }
  // So many tasks between them that it is just near enough, and one more.
  plan = paired_scatter();
  clear_pairs(plan);
  compute(plan).insert(compute(plan).begin() + 1, 94, Task{Transfer{}, {}, {}});
  compute(plan)[95].mate = 95;
  EXPECT_FALSE(check_format(plan).has_value()) << check_format(plan)->message;
  compute(plan).insert(compute(plan).begin() + 1, Task{Transfer{}, {}, {}});
  compute(plan)[96].mate = 96;
  expect_malformed(plan, "task 96 (tile): mate 96: its pair's first task must be from 1 to 95 tasks before it");
  plan = paired_scatter();
  compute(plan)[2].mate = 1;
  expect_malformed(plan, "rank 0 queue 0 task 2 (tile): mate 1: task 1 is in another pair");
  compute(plan)[2].mate = 2;
  expect_malformed(plan, "mate 2: task 0 is in another pair");
  plan = paired_scatter();
  plan.ranks[0].queues[0].cluster = ClusterMode::single;
  expect_malformed(plan, "task 1 (tile): mate 1: workers of a queue with cluster single take one task at a time");
  plan.ranks[0].queues[0].cluster = ClusterMode::share_k;
  expect_malformed(plan, "task 1 (tile): mate 1: workers of a queue with cluster share_k share each tile");
  plan = make_plan({Operator::all_gather_gemm, 64, 16, 8, 2, Type::bf16}, Strategy::fused, [] {
    Knobs knobs = pairs_knobs(Transport::push);
    knobs.comm_rows = 8;
    return knobs;
  }());
  plan.ranks[1].queues[1].tasks.at(1).mate = 1;
  expect_malformed(plan, "rank 1 queue 1 task 1 (transfer): mate 1: this is a copy queue");
}

TEST(Pairs, CheckerNamesWhatIsNotAlike) {
  Plan plan = paired_scatter();
  clear_pairs(plan);
  compute(plan)[2].mate = 1;
  expect_malformed(plan,
                   "task 2 (tile): mate 1: it is no pair with task 1: one multiplies by rows 0+256 cols 0+8 of B, the "
                   "other by rows 0+256 cols 8+8");
  const Task empty{Transfer{}, {}, {}};
  compute(plan).insert(compute(plan).begin(), empty);
  compute(plan)[1].mate = 1;
  compute(plan)[3].mate = 0;
  expect_malformed(plan, "task 1 (tile): mate 1: it is no pair with task 0: one is a signal, the other a tile");
  plan = paired_scatter();
  for (std::int64_t part : {0, 1}) {
    auto& tile = std::get<Tile>(compute(plan)[index(part)].work);
    tile.a.cols = tile.b.rows = 128;
    tile.a.col = 128 * part;
  }
  expect_malformed(plan, "task 1 (tile): mate 1: it is no pair with task 0: one multiplies columns of A from 0 on");
  // Slots of one tile come by the other's stages.
  plan = paired_scatter(4);
  auto& own = std::get<Tile>(compute(plan)[13].work);
  ASSERT_TRUE(own.adds.size() == 3 && compute(plan)[13].mate == 1);
  const Region slot = own.adds.back();
  own.adds.pop_back();
  expect_malformed(plan, "task 13 (tile): mate 1: it is no pair with task 12: slots that they add: 3, and 2");
  own.adds.push_back(slot);
  EXPECT_FALSE(check_format(plan).has_value());
  plan.buffers.push_back(plan.buffers[index(slot.buffer)]);
  plan.buffers.back().type = Type::fp32;
  own.adds.back().buffer = static_cast<int>(std::ssize(plan.buffers)) - 1;
  expect_malformed(plan, "slots that they add: 3, and 3 of fp32");
  own.adds.clear();
  own.own = 0;
  EXPECT_FALSE(check_format(plan).has_value()) << check_format(plan)->message;
}

TEST(Pairs, CheckerNamesMatesThatHoldOthersUp) {
  test::Random random(1);
  // What rank 1 sends from behind, rank 0's own tile waits for, and the other way round.
  Plan plan = paired_scatter();
  for (std::size_t rank : {0u, 1u}) {
    compute(plan, rank)[1].mate = 0;
    compute(plan, rank)[5].mate = 5;
  }
  EXPECT_FALSE(check_format(plan).has_value()) << check_format(plan)->message;
  expect_fault(
      plan, Fault::deadlock,
      "rank 0 queue 0 task 5 (tile): waits, and goes beside task 0, ahead of rank 0 queue 0 task 1 (tile): only "
      "a mate that waits for nothing goes ahead of others");
  EXPECT_FALSE(gets_through(plan, random));
  // Unless those between are mates of earlier tasks.
  plan = paired_scatter();
  clear_pairs(plan);
  for (std::size_t task : {2u, 4u}) compute(plan)[task].work = compute(plan)[0].work;
  compute(plan)[2].mate = 2;  // of task 0, so that 1 and 3 are neighbours
  compute(plan)[3].work = compute(plan)[1].work;
  compute(plan)[3].mate = 2;
  compute(plan)[3].waits = {{0, 1, WaitPoint::epilogue, 0}};
  EXPECT_FALSE(plan::find_pair_fault(plan).has_value()) << plan::find_pair_fault(plan)->message;
  compute(plan)[2].mate = 0;
  EXPECT_TRUE(plan::find_pair_fault(plan).has_value());
}

TEST(Pairs, CheckerNamesMatesWhoseLoadsHangOnTiles) {
  const auto gather = [](Transport transport) {
    return make_plan({Operator::all_gather_gemm, 48, 8, 8, 2, Type::bf16}, Strategy::fused, pairs_knobs(transport));
  };
  // The last own tile beside the first one of the other shard: that is there, whatever tiles do.
  Plan plan = gather(Transport::push);
  EXPECT_EQ(mates_of(compute(plan)), (std::vector<int>{0, 1, 0, 1, 0, 1}));
  ASSERT_FALSE(compute(plan)[3].waits.empty() || !compute(plan)[2].waits.empty());
  EXPECT_FALSE(check(plan).has_value());
  // Each rank's first tile lets the other's second one load, and cannot end before its own has loaded.
  test::Random random(1);
  for (std::size_t rank : {0u, 1u}) {
    const int other = 1 - static_cast<int>(rank), signal = plan.ranks[rank].signals;
    compute(plan, rank)[1].waits.push_back({signal});
    compute(plan, rank)[0].posts.push_back({other, signal});
  }
  for (RankPlan& rank : plan.ranks) ++rank.signals;
  expect_fault(plan, Fault::deadlock,
               "rank 0 queue 0 task 1 (tile): loads beside its pair's first tile, task 0, but waits before that for "
               "signal 2, to which rank 1 queue 0 task 0 (tile) posts after a wait, a tile or a collective");
  EXPECT_FALSE(gets_through(plan, random));
  clear_pairs(plan);
  EXPECT_FALSE(check(plan).has_value()) << check(plan)->message;
  EXPECT_TRUE(gets_through(plan, random));
  // A copy that waits for an entry may wait for a tile.
  plan = gather(Transport::pull);
  EXPECT_EQ(mates_of(compute(plan)), (std::vector<int>{0, 1, 0, 0, 0, 0}));
  compute(plan)[3].mate = 1;
  expect_fault(plan, Fault::deadlock,
               "task 3 (tile): loads beside its pair's first tile, task 2, but waits before that");
  // A collective ends once all ranks have come to it, though it waits for nothing here.
  plan = make_plan({Operator::all_gather_gemm, 32, 8, 8, 2, Type::bf16}, Strategy::signaled, pairs_knobs());
  EXPECT_EQ(mates_of(compute(plan)), (std::vector<int>{0, 1, 0, 0}));
  EXPECT_FALSE(check(plan).has_value());
  clear_pairs(plan);
  compute(plan)[2].mate = 1;
  expect_fault(plan, Fault::deadlock,
               "rank 0 queue 0 task 2 (tile): loads beside its pair's first tile, task 1, but waits before that for "
               "signal 0, to which rank 0 queue 1 task 0 (collective) posts after a wait, a tile or a collective");
}

// -------------------------------------------------------------------------------------------- what is proved, holds

TEST(Pairs, WhatStrategiesPairGetsThrough) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 300; ++i) {
    const auto c = random_fused(random, 300);
    SCOPED_TRACE(test::describe(c));
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    ASSERT_FALSE(plan::find_pair_fault(plan).has_value()) << plan::find_pair_fault(plan)->message;
    ASSERT_TRUE(gets_through(plan, random));
  }
}

// As the format allows; returns how many.
int pair_at_random(const Plan& plan, std::vector<Task>& tasks, test::Random& random) {
  std::vector<plan::PairSide> sides;
  std::vector<std::size_t> alone;
  int pairs = 0;
  for (std::size_t t = 0; t < tasks.size(); ++t) {
    sides.push_back(plan::side_of(plan, tasks[t]));
    std::vector<std::size_t> firsts;
    std::copy_if(alone.begin(), alone.end(), std::back_inserter(firsts),
                 [&](std::size_t i) { return t - i <= plan::most_mate && alike(sides[i], sides[t]); });
    if (firsts.empty() || random.chance(0.3)) {
      alone.push_back(t);
      continue;
    }
    const std::size_t first =
        random.chance(0.5) ? firsts.back() : firsts[index(random.between(0, std::ssize(firsts) - 1))];
    std::erase(alone, first);
    tasks[t].mate = static_cast<int>(t - first);
    ++pairs;
  }
  return pairs;
}

// Pairs at random, of which the proof leaves some.
TEST(Pairs, WhatTheCheckerAcceptsGetsThrough) {
  test::Random random(test::seed_from_environment());
  int accepted = 0, refused = 0, stuck = 0;
  for (int i = 0; i < 1000; ++i) {
    auto c = random_fused(random, 120);
    c.knobs.tile_m = c.knobs.tile_n = 16;
    c.knobs.cluster = 0;
    SCOPED_TRACE(test::describe(c));
    Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    clear_pairs(plan);
    ASSERT_TRUE(gets_through(plan, random));
    int pairs = 0;
    for (RankPlan& rank : plan.ranks)
      for (Queue& queue : rank.queues)
        if (queue.engine == Engine::compute && queue.cluster != ClusterMode::share_k)
          pairs += pair_at_random(plan, queue.tasks, random);
    ASSERT_FALSE(check_format(plan).has_value()) << check_format(plan)->message;
    if (pairs == 0) continue;
    const auto finding = plan::find_pair_fault(plan);
    const bool through = gets_through(plan, random);
    ASSERT_TRUE(through || finding.has_value()) << "accepted, and stuck";
    accepted += !finding.has_value();
    refused += finding.has_value();
    stuck += !through;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 200);
  EXPECT_GT(stuck, 50);
}

}  // namespace
}  // namespace imbrex
