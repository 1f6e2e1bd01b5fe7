// What the CUDA executor launches for plans of embedding_all_to_all, without a GPU.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "execute/cuda/embedding/bag_rounds.hpp"
#include "execute/cuda/libraries/library_translate.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/steps/one_queue.hpp"
#include "execute/cuda/steps/step_list.hpp"
#include "execute/cuda_tables.hpp"
#include "imbrex/error.hpp"
#include "problem/embedding.hpp"
#include "support/edited_bags.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using cuda::BagColumns, cuda::BagRounds, cuda::BlockLaunch, cuda::BlockStep, cuda::SignalStep;

Problem tables_on(int ranks, std::int64_t part_rows) {
  Problem p{embedding_all_to_all, ranks * part_rows, 0, 0, ranks, Type::fp16};
  std::int64_t col = 0;
  for (int i = 0; i < 2 * ranks; ++i) {
    p.tables.shards.push_back({i % ranks, 100, 8, col, 3});
    col += 8;
  }
  return p;
}

// Some ranks may have no shard; those of a rank lie here and there in the output.
Problem random_tables(test::Random& random, int ranks) {
  Problem p{embedding_all_to_all, ranks * random.between(1, 12), 0, 0, ranks, random.one_of({Type::fp32, Type::bf16})};
  std::int64_t col = 0;
  for (auto left = random.between(1, 7); left > 0; --left) {
    p.tables.shards.push_back({static_cast<int>(random.between(0, ranks - 1)), 30, 4 * random.between(1, 40), col, 2});
    col += p.tables.shards.back().dim;
  }
  std::vector<TableShard>& shards = p.tables.shards;
  for (std::size_t i = shards.size(); i > 1; --i)
    std::swap(shards[i - 1], shards[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i) - 1))]);
  return p;
}

std::string refusal_on_gpus(const Plan& plan) { return cuda::refusal_of_plan(plan); }

// One rank's part, as an execution makes it.
struct OnRank {
  cuda::OneQueue ordered;
  cuda::RankTable table;
  cuda::StepList list;

  OnRank(const Plan& plan, int rank)
      : ordered(cuda::in_one_queue(std::make_shared<const Plan>(plan), rank)),
        table(test::table_of(*ordered.plan, rank, cuda::no_tiles)),
        list(cuda::step_list(*ordered.plan, rank, table)) {}

  std::vector<BagRounds> rounds(int rank, const BlockLaunch& launch) const {
    return cuda::bag_rounds(*ordered.plan, rank, table, launch);
  }
  const std::vector<BlockLaunch>& launches() const {
    static const std::vector<BlockLaunch> none;
    return list.launches.empty() ? none : list.launches.begin()->second;
  }
};

// Where an element is stored, and which it is.
using Address = std::pair<cuda::Base, std::uint64_t>;
struct Sum {
  std::uint32_t row = 0, shard = 0, col = 0;
  bool operator==(const Sum&) const = default;
};
using Sums = std::map<Address, Sum>;

// As the table's blocks say it.
Sums sums_of_table(const Plan& plan, int rank, const cuda::RankTable& table) {
  const problem::OwnShards own(plan.problem.tables, rank);
  Sums sums;
  for (const cuda::TaskEntry& task : table.tasks) {
    if (task.kind != cuda::TaskKind::block) continue;
    const cuda::BlockNumbers block = cuda::block_of(task);
    for (std::uint32_t s = 0; s < task.stores; ++s) {
      const cuda::RegionEntry& to = table.regions[task.regions + task.adds + s];
      for (std::uint32_t r = 0; r < to.rows; ++r) {
        const std::uint32_t row = to.row + r;
        if (row < block.args[1] * block.share / block.shares) continue;
        if (row >= block.args[1] * (block.share + 1) / block.shares) continue;
        for (std::uint32_t c = 0; c < to.cols; ++c) {
          std::uint32_t shard = block.args[2];
          std::int64_t col = to.col + c;
          for (; col >= own[shard].dim; ++shard) col -= own[shard].dim;
          const bool fresh = sums.insert({{to.base, to.address + r * to.pitch + c * size_of(to.type)},
                                          {block.args[0] + row, shard, static_cast<std::uint32_t>(col)}})
                                 .second;
          EXPECT_TRUE(fresh);
        }
      }
    }
  }
  return sums;
}

// As the launches store them.
Sums sums_of_launches(int rank, const OnRank& on) {
  Sums sums;
  std::size_t next = 0;
  for (const BlockLaunch& launch : on.launches()) {
    EXPECT_GE(launch.first, next);
    next = launch.first + launch.count;
    for (const BagRounds& rounds : on.rounds(rank, launch)) {
      EXPECT_LE(rounds.strips.size(), 64u);
      EXPECT_LE(rounds.slices, 64u);
      for (const BagColumns& columns : rounds.columns)
        EXPECT_LE((columns.at + columns.count) * size_of(rounds.type), rounds.pitch);
      for (const cuda::BagStrip& strip : rounds.strips) {
        EXPECT_LE(strip.rows, rounds.slices * rounds.slice_rows);
        for (std::uint32_t r = 0; r < strip.rows; ++r)
          for (const BagColumns& columns : rounds.columns)
            for (std::uint32_t c = 0; c < columns.count; ++c) {
              const std::uint64_t address = strip.address + r * rounds.pitch + (columns.at + c) * size_of(rounds.type);
              const bool fresh =
                  sums.insert({{strip.base, address}, {strip.first_row + r, columns.shard, columns.first + c}}).second;
              EXPECT_TRUE(fresh);
            }
      }
    }
  }
  return sums;
}

// Runs the steps of all ranks, each whenever it can; a launch posts when all of it is done. Says who is stuck.
std::string stuck(const Plan& plan, const std::vector<OnRank>& ranks) {
  const execute::HeapLayout layout(plan);
  std::map<std::uint64_t, std::uint32_t> counters;
  std::vector<std::size_t> at(ranks.size());
  std::map<std::pair<int, std::size_t>, bool> begun;  // steps, whose posts come before their waits
  const auto counter = [&](int rank, std::uint32_t signal) {
    return reinterpret_cast<std::uint64_t>(
        test::pretend_heap(rank).at(rank, 4096 + layout.counter(static_cast<int>(signal), 0)));
  };
  const auto step = [&](int rank) {
    const OnRank& on = ranks[static_cast<std::size_t>(rank)];
    const auto met = [&](const cuda::WaitEntry& wait) { return counters[counter(rank, wait.signal)] >= wait.count; };
    std::size_t& place = at[static_cast<std::size_t>(rank)];
    if (place == on.list.steps.size()) return false;
    const cuda::Step& now = on.list.steps[place];
    if (const auto* signals = std::get_if<SignalStep>(&now)) {
      if (std::exchange(begun[{rank, place}], true) == false) {
        for (std::uint32_t i = 0; i < signals->posts; ++i) ++counters[on.table.posts[signals->first_post + i].counter];
        return true;
      }
      for (std::uint32_t i = 0; i < signals->waits; ++i)
        if (!met(on.table.waits[signals->first_wait + i])) return false;
    } else if (const auto* blocks = std::get_if<BlockStep>(&now)) {
      const BlockLaunch& launch = on.launches()[blocks->launch];
      if (launch.signals) {
        const BagRounds rounds = on.rounds(rank, launch).front();
        if (rounds.wait && !met(*rounds.wait)) return false;
        for (const cuda::BagStrip& strip : rounds.strips)
          for (std::uint32_t slice = 0; strip.posts && slice * rounds.slice_rows < strip.rows; ++slice)
            ++counters[*strip.posts];
      }
    }
    ++place;
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < plan.problem.ranks; ++rank)
      while (step(rank)) moved = true;
  }
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    if (at[rank] < ranks[rank].list.steps.size()) return fmt::format("rank {} at step {}", rank, at[rank]);
  for (int rank = 0; rank < plan.problem.ranks; ++rank)
    for (int signal = 0; signal < layout.signals(rank); ++signal)
      if (counters[counter(rank, static_cast<std::uint32_t>(signal))] != layout.posts(rank, signal))
        return fmt::format("rank {}: signal {} has {} posts", rank, signal,
                           counters[counter(rank, static_cast<std::uint32_t>(signal))]);
  return "";
}

// Three steps: peers are let in, one launch looks up, the peers' posts are waited for. The launch takes each rank's
// rows in slices of tile_m, the own ones last, and every shard where it lies in the output.
void expect_closed_form(const Plan& plan, int rank, const OnRank& on) {
  const Problem& p = plan.problem;
  const problem::OwnShards own(p.tables, rank);
  const std::int64_t part = p.m / p.ranks, slice = std::min(plan.knobs.tile_m, part),
                     width = problem::width_of(p.tables);
  const auto slices = static_cast<std::uint32_t>((part + slice - 1) / slice);
  std::uint32_t lookers = 0;
  for (int other = 0; other < p.ranks; ++other)
    lookers += other != rank && problem::OwnShards(p.tables, other).count() > 0;
  const auto peers = static_cast<std::uint32_t>(p.ranks - 1);
  std::vector<cuda::Step> steps;
  if (peers > 0) steps.emplace_back(SignalStep{0, peers, 0, 0, 0});
  if (own.count() > 0) steps.emplace_back(BlockStep{on.list.launches.begin()->first, 0});
  const auto last = static_cast<std::uint32_t>(on.table.tasks.size() - 1);
  const std::uint32_t waits = own.count() > 0 ? peers * slices : 0;
  if (peers > 0 && own.count() == 0 && lookers > 0) steps = {SignalStep{0, peers, 0, 1, last}};
  if (peers > 0 && own.count() > 0) steps.emplace_back(lookers > 0 ? SignalStep{0, 0, waits, 1, last} : SignalStep{});
  EXPECT_EQ(on.list.steps, steps);
  EXPECT_EQ(on.list.readers, peers == 0 ? 0u : own.count() > 0 ? 2u : 1u);
  if (lookers > 0) {
    EXPECT_EQ(on.table.waits.back().count, lookers * slices);
  }
  if (own.count() == 0) return;
  ASSERT_EQ(on.launches(), (std::vector<BlockLaunch>{{peers > 0 ? 1u : 0u, slices * (peers + 1), true}}));
  const std::vector<BagRounds> all = on.rounds(rank, on.launches().front());
  ASSERT_EQ(all.size(), 1u);
  const BagRounds& rounds = all.front();
  EXPECT_EQ(rounds.slices, slices);
  EXPECT_EQ(rounds.slice_rows, slice);
  EXPECT_EQ(rounds.pitch, static_cast<std::uint64_t>(width) * size_of(p.type));
  EXPECT_EQ(rounds.wait.has_value(), peers > 0);
  if (peers > 0) {
    EXPECT_EQ(rounds.wait->count, peers);
  }
  std::int64_t leftmost = width;
  for (std::size_t i = 0; i < own.count(); ++i) leftmost = std::min(leftmost, own[i].first_col);
  std::vector<BagColumns> columns;
  for (std::size_t i = 0; i < own.count(); ++i)
    columns.push_back({static_cast<std::uint32_t>(i), 0, static_cast<std::uint32_t>(own[i].dim),
                       static_cast<std::uint32_t>(own[i].first_col - leftmost)});
  EXPECT_EQ(rounds.columns, columns);
  ASSERT_EQ(rounds.strips.size(), static_cast<std::size_t>(p.ranks));
  const std::uint64_t stride = test::pretend_heap(rank).stride;
  for (std::size_t i = 0; i < rounds.strips.size(); ++i) {
    const int to = (rank + 1 + static_cast<int>(i)) % p.ranks;
    const cuda::BagStrip& strip = rounds.strips[i];
    EXPECT_EQ(strip.first_row, to * part);
    EXPECT_EQ(strip.rows, part);
    EXPECT_EQ(strip.base, cuda::Base::out);
    EXPECT_EQ(strip.address,
              static_cast<std::uint64_t>(to - rank) * stride + static_cast<std::uint64_t>(leftmost) * size_of(p.type));
    EXPECT_EQ(strip.waits, to != rank);
    EXPECT_EQ(strip.posts.has_value(), to != rank);
  }
}

TEST(EmbeddingTranslate, FusedPlansAreOneLaunch) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < 200; ++i) {
    test::Random random(seed + i);
    const int count = static_cast<int>(random.between(1, 6));
    Knobs knobs;
    knobs.tile_m = random.between(1, 14);
    const Plan plan = make_plan(random_tables(random, count), Strategy::fused, knobs);
    SCOPED_TRACE(fmt::format("seed {}: {}, tile_m = {}", seed + i, problem::sizes_text(plan.problem), knobs.tile_m));
    ASSERT_TRUE(cuda::runs_in_steps(plan));
    EXPECT_EQ(refusal_on_gpus(plan), "");
    std::vector<OnRank> ranks;
    for (int rank = 0; rank < count; ++rank) {
      const OnRank& on = ranks.emplace_back(plan, rank);
      expect_closed_form(plan, rank, on);
      EXPECT_EQ(sums_of_launches(rank, on), sums_of_table(plan, rank, on.table));
    }
    EXPECT_EQ(stuck(plan, ranks), "");
    if (testing::Test::HasFailure()) break;
  }
}

// A launch has up to 64 rounds: what comes behind the last one's slice is a strip of its own.
TEST(EmbeddingTranslate, ManySlicesAreSeveralStrips) {
  Knobs knobs;
  knobs.tile_m = 1;
  const Plan plan = make_plan(tables_on(2, 150), Strategy::fused, knobs);
  EXPECT_EQ(refusal_on_gpus(plan), "");
  std::vector<OnRank> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    const OnRank& on = ranks.emplace_back(plan, rank);
    ASSERT_EQ(on.launches().size(), 1u);
    const BagRounds rounds = on.rounds(rank, on.launches().front()).front();
    EXPECT_EQ(rounds.slices, 64u);
    EXPECT_EQ(rounds.strips.size(), 6u);
    EXPECT_EQ(sums_of_launches(rank, on), sums_of_table(plan, rank, on.table));
  }
  EXPECT_EQ(stuck(plan, ranks), "");
}

bool same_table(const cuda::RankTable& x, const cuda::RankTable& y) {
  return test::same_bytes(x.tasks, y.tasks) && test::same_bytes(x.waits, y.waits) &&
         test::same_bytes(x.regions, y.regions) && test::same_bytes(x.posts, y.posts);
}

TEST(EmbeddingTranslate, EditedPlansAreTheirOwnTables) {
  const std::uint64_t seed = test::seed_from_environment();
  std::map<std::string, int> differ;
  for (std::uint64_t i = 0; i < 40; ++i) {
    test::Random random(seed + i);
    const int count = static_cast<int>(random.between(1, 5));
    Knobs knobs;
    knobs.tile_m = random.between(1, 9);
    const Plan made = make_plan(random_tables(random, count), Strategy::fused, knobs);
    for (const auto& [name, plan] : test::edited_bags(made)) {
      SCOPED_TRACE(
          fmt::format("seed {}: {}, tile_m = {}, {}", seed + i, problem::sizes_text(made.problem), knobs.tile_m, name));
      const auto finding = check(plan);
      ASSERT_FALSE(finding) << finding->message;
      EXPECT_EQ(refusal_on_gpus(plan), "");
      std::vector<OnRank> ranks;
      for (int rank = 0; rank < count; ++rank) {
        const OnRank& on = ranks.emplace_back(plan, rank);
        EXPECT_EQ(sums_of_launches(rank, on), sums_of_table(plan, rank, on.table));
        differ[name] += !same_table(on.table, test::table_of(made, rank, cuda::no_tiles));
      }
      EXPECT_EQ(stuck(plan, ranks), "");
    }
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_EQ(differ.size(), test::edited_bags(make_plan(tables_on(1, 2), Strategy::fused, {})).size());
  for (const auto& [name, count] : differ) EXPECT_GT(count, 0) << name;
}

// Blocks that lie apart, or wait and post more than once, are launched alone, and steps around them signal.
TEST(EmbeddingTranslate, WhatALaunchCannotSignalStepsDo) {
  for (const auto& [name, plan] : test::edited_bags(make_plan(tables_on(2, 4), Strategy::fused, {}))) {
    const OnRank on(plan, 0);
    const auto signals = [](const BlockLaunch& launch) { return launch.signals; };
    const bool all = std::all_of(on.launches().begin(), on.launches().end(), signals);
    EXPECT_EQ(all, name != "in pieces" && name != "waiting twice") << name;
  }
}

// The columns of one table lie further down than the other's: a launch stores both where they are no further apart than
// a row is long.
TEST(EmbeddingTranslate, RowsOfABlockMayLieApart) {
  for (const std::int64_t down : {1, 2}) {
    Plan plan = make_plan(tables_on(1, 4), Strategy::fused, {});
    Block& block = std::get<Block>(plan.ranks[0].queues[0].tasks[0].work);
    block.stores = {{{0, 0, 0, 8, 2, 8}, 0, 0}, {{0, 0, down, 0, 2, 8}, 0, 8}};
    const OnRank on(plan, 0);
    ASSERT_EQ(on.launches().size(), 1u);
    EXPECT_EQ(on.launches().front().signals, down == 1);
    EXPECT_EQ(on.rounds(0, on.launches().front()).size(), down == 1 ? 1u : 2u);
    EXPECT_EQ(sums_of_launches(0, on), sums_of_table(plan, 0, on.table));
  }
}

TEST(EmbeddingTranslate, HostilePlansAreRefused) {
  const Plan made = make_plan(tables_on(2, 4), Strategy::fused, {});
  const auto refused = [&](const std::string& text, auto&& change) {
    Plan plan = made;
    change(plan);
    EXPECT_NE(refusal_on_gpus(plan).find(text), std::string::npos) << refusal_on_gpus(plan);
  };
  // Two queues, each of which waits for what comes behind the other's wait.
  refused("waits for", [](Plan& plan) {
    for (RankPlan& rank : plan.ranks) {
      const int first = rank.signals, second = first + 1;
      rank.signals += 2;
      const int own = static_cast<int>(&rank - plan.ranks.data());
      auto& tasks = rank.queues.front().tasks;
      tasks.insert(tasks.begin(), {Task{Transfer{}, {{first}}, {}}, Task{Transfer{}, {}, {{own, second}}}});
      Queue other;
      other.workers = 1;
      other.tasks = {Task{Transfer{}, {{second}}, {}}, Task{Transfer{}, {}, {{own, first}}}};
      rank.queues.push_back(std::move(other));
    }
  });
  refused("GPUs store four at a time", [](Plan& plan) {
    for (Task& task : plan.ranks.front().queues.front().tasks)
      if (auto* block = std::get_if<Block>(&task.work)) {
        Store rest = block->stores.front();
        block->stores.front().to.cols = 2;
        rest.col += 2, rest.to.col += 2, rest.to.cols -= 2;
        block->stores.push_back(rest);
      }
  });
}

TEST(EmbeddingTranslate, LibraryPlansLookUpExchangeAndCopy) {
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed})
    for (const int ranks : {1, 2, 4}) {
      Knobs knobs;
      knobs.chunks = 3;
      const Plan plan = make_plan(tables_on(ranks, 9), strategy, knobs);
      EXPECT_FALSE(cuda::runs_in_steps(plan));
      EXPECT_EQ(refusal_on_gpus(plan), "");
      const int chunks = strategy == Strategy::sequential ? 1 : 3;
      for (int rank = 0; rank < ranks; ++rank) {
        const cuda::LibraryProgram program = cuda::library_program(plan, rank);
        std::map<std::size_t, int> kinds;  // by place in the variant
        for (const cuda::LibraryStep& step : program.steps) ++kinds[step.work.index()];
        EXPECT_EQ(kinds[4], chunks * ranks);                        // blocks
        EXPECT_EQ(kinds[3], ranks > 1 ? chunks : 0);                // exchanges
        EXPECT_EQ(kinds[1], chunks * ranks * (ranks > 1 ? 2 : 1));  // copies of each run of columns
        EXPECT_EQ(program.forked.size(), chunks > 1 ? 2u : 1u);     // streams
      }
    }
}

TEST(EmbeddingTranslate, BlocksOfLibraryQueuesStoreToWorkspaces) {
  const auto refusal = [](auto&& change) {
    Plan plan = make_plan(tables_on(2, 4), Strategy::sequential, {});
    change(std::get<Block>(plan.ranks[0].queues[0].tasks[0].work));
    return refusal_on_gpus(plan);
  };
  EXPECT_EQ(refusal([](Block&) {}), "");
  EXPECT_EQ(refusal([](Block& b) { b.shares = 2; }), "");
  const std::string peers = refusal([](Block& b) { b.stores[0].to.rank = 1; });
  EXPECT_NE(peers.find("a store is on rank 1"), std::string::npos) << peers;
  const std::string output = refusal([](Block& b) { b.stores[0].to.buffer = 0; });
  EXPECT_NE(output.find("into workspaces only"), std::string::npos) << output;
}

}  // namespace
}  // namespace imbrex
