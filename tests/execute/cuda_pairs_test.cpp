// Which tasks the blocks of a cluster take together.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "cuda_tables.hpp"

namespace imbrex {
namespace {

using namespace imbrex::cuda;
using test::plan_of;
using test::refusal;
using test::scatter_knobs;
using test::table_of;

TEST(CudaPairs, EveryTaskAppearsOnceWhateverTheCluster) {
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (TileOrder order : {TileOrder::owner_major, TileOrder::column_major, TileOrder::naive})
      for (int cluster : {1, 2})
        for (int rank = 0; rank < 4; ++rank) {
          Knobs knobs = op == Operator::all_gather_gemm ? Knobs{} : scatter_knobs();
          knobs.order = order;
          knobs.group = 3;
          const Plan plan = plan_of(op, knobs, 1100, 520, 256);
          const RankTable table = table_of(plan, rank, {128, 128, cluster, true});
          std::multiset<std::uint32_t> tasks;
          for (const TaskEntry& entry : table.tasks)
            if (entry.kind != TaskKind::peer_cta && entry.kind != TaskKind::none) tasks.insert(entry.task);
          const auto& queue = plan.ranks[static_cast<std::size_t>(rank)].queues[0];
          EXPECT_EQ(tasks.size(), queue.tasks.size());
          EXPECT_EQ(std::set<std::uint32_t>(tasks.begin(), tasks.end()).size(), queue.tasks.size());
          EXPECT_EQ(table.tasks.size(), table.queues[0].count * static_cast<std::size_t>(cluster));
        }
}

// Pairs side by side where their first tasks stand, as the plan says, and all others alone.
TEST(CudaPairs, PairsAreThoseOfThePlan) {
  std::size_t far = 0, alone = 0;
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (int shift : {0, 4, 8}) {
      Knobs knobs = op == Operator::all_gather_gemm ? Knobs{} : scatter_knobs();
      knobs.order = shift == 0 ? TileOrder::owner_major : TileOrder::column_major;
      knobs.own_shift = shift;
      knobs.split_k = shift == 8 ? 2 : 1;
      if (shift == 4) knobs.order = TileOrder::naive;
      const Plan plan = plan_of(op, knobs, 4 * 640, 1024, 4 * 256);
      const TileShape shape{128, 128, 2, true};
      const RankTable table = table_of(plan, 1, shape);
      const auto& tasks = plan.ranks[1].queues[0].tasks;
      std::size_t entry = 0;
      std::map<std::size_t, std::size_t> entries;  // of tasks without mates before them
      for (std::size_t t = 0; t < tasks.size(); ++t) {
        if (tasks[t].mate == 0) entries[t] = entry, entry += 2;
        const std::size_t at =
            tasks[t].mate == 0 ? entries[t] : entries[t - static_cast<std::size_t>(tasks[t].mate)] + 1;
        ASSERT_EQ(table.tasks[at].task, t);
        far += tasks[t].mate > 1;
      }
      EXPECT_EQ(entry, table.tasks.size());
      std::size_t peer_ctas = 0;
      for (std::size_t i = 0; i < entry; i += 2) {
        const TaskEntry &x = table.tasks[i], &y = table.tasks[i + 1];
        EXPECT_EQ(x.slot_stages, y.slot_stages);
        EXPECT_EQ(x.slot_stages, slot_stages_of(shape, std::max(x.adds, y.adds)) * (knobs.split_k == 1));
        if (y.task == x.task) {
          EXPECT_EQ(y.kind, x.kind == TaskKind::tile ? TaskKind::peer_cta : TaskKind::none);
          EXPECT_EQ(y.post_count + y.stores + y.load_waits + y.epilogue_waits + y.adds + y.bias, 0);
          peer_ctas += y.kind == TaskKind::peer_cta;
          alone += 1;
        } else {
          EXPECT_EQ(y.kind, x.kind);
          EXPECT_TRUE(x.b_col == y.b_col && x.k_begin == y.k_begin && x.k_end == y.k_end);
        }
      }
      EXPECT_EQ(peer_ctas, table.peer_ctas);
    }
  EXPECT_GT(far, 20u);
  EXPECT_GT(alone, 20u);
}

TEST(CudaPairs, TasksOfAPlanWithoutPairsStandAlone) {
  Knobs knobs = scatter_knobs();
  knobs.cluster = 1;
  const Plan plan = plan_of(Operator::gemm_reduce_scatter, knobs);
  const RankTable table = table_of(plan, 0, {128, 128, 2, true});
  EXPECT_EQ(table.tasks.size(), 2 * plan.ranks[0].queues[0].tasks.size());
  EXPECT_EQ(table.peer_ctas, table.tiles);
}

// The first task and its mate as far apart as can be, in a queue after another one.
TEST(CudaPairs, MatesComeFromAsFarAsPlansAllow) {
  Plan plan = plan_of(Operator::gemm_reduce_scatter, scatter_knobs(), 4 * 128, 128, 4 * 128);
  auto& queues = plan.ranks[0].queues;
  queues.push_back(queues[0]);
  queues[1].workers = 4;
  queues[1].tasks.assign(300, queues[0].tasks[0]);
  queues[1].tasks[95 + 96].mate = 95;
  ASSERT_FALSE(check_format(plan).has_value()) << check_format(plan)->message;
  const RankTable table = table_of(plan, 0, {128, 128, 2, true});
  const TaskEntry* tasks = &table.tasks[2 * table.queues[1].first];
  EXPECT_EQ(table.queues[1].count, 299u);
  EXPECT_TRUE(tasks[2 * 96].task == 96 && tasks[2 * 96 + 1].task == 191);
  for (const std::size_t other : {0, 95, 97, 190, 191, 298})
    EXPECT_EQ(tasks[2 * other + 1].kind, TaskKind::peer_cta) << other;
  EXPECT_EQ(tasks[2 * 191].task, 192u);
}

// Not those of tiles, which they share, and so none.
TEST(CudaPairs, BlocksThatShareKIgnorePairs) {
  Knobs knobs = scatter_knobs();
  knobs.reducer = Reducer::tail;
  const TileShape shape{128, 128, 2, true, 16, 16, Sharing::k, 64};
  const auto neighbours = [&](int cluster_k) {
    knobs.cluster_k = cluster_k;
    const RankTable table = table_of(plan_of(Operator::gemm_reduce_scatter, knobs), 0, shape);
    std::size_t count = 0;
    for (std::size_t i = 0; i < table.tasks.size(); i += 2) count += table.tasks[i].task != table.tasks[i + 1].task;
    return count;
  };
  EXPECT_EQ(neighbours(1), 0u);
  EXPECT_EQ(neighbours(2), 4u);  // of 8 sums
}

// Each block takes half of every tile's K, in as many slices as the other, and waits for what its own half reads.
TEST(CudaPairs, BlocksThatShareKTakeHalvesOfEveryTile) {
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (const std::uint32_t slice : {64u, 128u}) {
      Knobs knobs = op == Operator::all_gather_gemm ? Knobs{} : scatter_knobs();
      if (op == Operator::all_gather_gemm) knobs.k_slices = 3;
      const Plan plan = plan_of(op, knobs, 1100, 520, 4 * 328);
      const auto depth = static_cast<std::uint32_t>(shapes_of(plan.problem).depth);
      const RankTable table = table_of(plan, 1, {128, 128, 2, true, 16, 16, Sharing::k, slice});
      const RankTable whole = table_of(plan, 1, {128, 128, 1, true, 16, 16});
      std::map<std::uint32_t, TaskEntry> tiles;
      for (const TaskEntry& entry : whole.tasks)
        if (entry.kind == TaskKind::tile) tiles[entry.task] = entry;
      std::size_t late = 0;
      for (std::size_t i = 0; i < table.tasks.size(); i += 2) {
        const TaskEntry &x = table.tasks[i], &y = table.tasks[i + 1];
        if (x.kind != TaskKind::tile) {
          EXPECT_NE(y.kind, TaskKind::tile);
          continue;
        }
        ASSERT_TRUE(y.kind == TaskKind::peer_cta && x.task == y.task && tiles.contains(x.task));
        const TaskEntry tile = tiles[x.task];
        tiles.erase(x.task);
        EXPECT_TRUE(x.a_row == y.a_row && x.b_col == y.b_col && x.a_source == y.a_source);
        EXPECT_TRUE(x.k_begin == 0 && x.k_end == y.k_begin && x.k_end % slice == 0 && y.k_end == 2 * x.k_end);
        EXPECT_TRUE(y.k_end >= depth && y.k_end < depth + 2 * slice);
        EXPECT_EQ(x.slot_stages, y.slot_stages);
        EXPECT_EQ(x.stores, tile.stores);
        EXPECT_EQ(y.stores + y.adds + y.post_count + y.epilogue_waits + y.bias, 0);
        ASSERT_EQ(y.load_waits, tile.load_waits);
        for (std::uint32_t w = 0; w < tile.load_waits; ++w) {
          const WaitEntry &wait = whole.waits[tile.waits + w], &own = table.waits[y.waits + w];
          EXPECT_TRUE(own.signal == wait.signal && own.count == wait.count);
          EXPECT_EQ(own.k_begin, wait.k_begin > y.k_begin ? wait.k_begin - y.k_begin : 0);
          EXPECT_EQ(table.waits[x.waits + w].k_begin, wait.k_begin);
          late += own.k_begin > 0;
        }
      }
      EXPECT_TRUE(tiles.empty());
      EXPECT_EQ(late > 0, op == Operator::all_gather_gemm);
      EXPECT_EQ(table.peer_ctas, table.tiles);
    }
}

TEST(CudaPairs, BlocksShareNoPartOfK) {
  Knobs knobs = scatter_knobs();
  knobs.split_k = 2;
  const Plan plan = plan_of(Operator::gemm_reduce_scatter, knobs, 1024, 512, 4 * 512);
  const TileShape shape{128, 128, 2, true, 16, 16, Sharing::k, 64};
  EXPECT_FALSE(fits(plan, survey_of(plan, 0), shape));
  EXPECT_NE(refusal(plan, shape).find("blocks share stretches up to K's end only"), std::string::npos);
}

}  // namespace
}  // namespace imbrex
