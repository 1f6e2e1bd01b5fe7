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
            if (entry.kind != TaskKind::partner && entry.kind != TaskKind::none) tasks.insert(entry.task);
          const auto& queue = plan.ranks[static_cast<std::size_t>(rank)].queues[0];
          EXPECT_EQ(tasks.size(), queue.tasks.size());
          EXPECT_EQ(std::set<std::uint32_t>(tasks.begin(), tasks.end()).size(), queue.tasks.size());
          EXPECT_EQ(table.tasks.size(), table.queues[0].count * static_cast<std::size_t>(cluster));
        }
}

// A pair shares B, of one stretch of K, and only a neighbour or a tile without waits may be drawn into one.
TEST(CudaPairs, PairsShareColumnsAndMatesDoNotWaitForTiles) {
  for (Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (int shift : {0, 4, 8}) {
      Knobs knobs = scatter_knobs();
      knobs.order = shift == 0 ? TileOrder::owner_major : TileOrder::column_major;
      knobs.own_shift = shift;
      knobs.split_k = shift == 8 ? 2 : 1;
      const RankTable table = table_of(plan_of(op, knobs, 2048, 1024, 4 * 256), 1, {128, 128, 2, true});
      std::set<std::uint32_t> begins;
      std::uint32_t next = 0;  // tasks before this one are in earlier pairs, unless they have no waits
      std::set<std::uint32_t> seen;
      for (std::size_t i = 0; i < table.tasks.size(); i += 2) {
        const TaskEntry &x = table.tasks[i], &y = table.tasks[i + 1];
        seen.insert(x.task);
        while (seen.contains(next)) ++next;
        if (y.kind == TaskKind::partner || y.kind == TaskKind::none) {
          EXPECT_EQ(y.post_count + y.stores + y.load_waits + y.epilogue_waits, 0);
          continue;
        }
        if (x.kind == TaskKind::tile) {
          EXPECT_TRUE(x.b_col == y.b_col && x.k_begin == y.k_begin && x.k_end == y.k_end);
          begins.insert(x.k_begin);
        }
        if (y.task != next) {
          EXPECT_EQ(y.load_waits + y.epilogue_waits, 0) << y.task << " beside " << x.task;
        }
        seen.insert(y.task);
        while (seen.contains(next)) ++next;
      }
      EXPECT_EQ(std::ssize(begins), knobs.split_k);
    }
}

// Tiles of a pair go through the same stages, so what these bring has to suit both.
TEST(CudaPairs, TilesThatAddDifferentlyAreNoPair) {
  Plan plan = plan_of(Operator::gemm_reduce_scatter, scatter_knobs(), 4 * 256, 128, 4 * 128);
  const TileShape shape{128, 128, 2, true, 16, 16};
  const auto adding_pairs = [&] {
    std::size_t pairs = 0;
    const RankTable table = table_of(plan, 0, shape);
    for (std::size_t i = 0; i < table.tasks.size(); i += 2) {
      const TaskEntry &x = table.tasks[i], &y = table.tasks[i + 1];
      if (x.kind != TaskKind::tile || y.kind != TaskKind::tile || x.adds == 0 || y.adds == 0) continue;
      EXPECT_TRUE(x.adds == y.adds && x.slot_stages == slot_stages_of(shape, x.adds));
      ++pairs;
    }
    return pairs;
  };
  EXPECT_EQ(adding_pairs(), 1u);
  for (Task& task : plan.ranks[0].queues[0].tasks)
    if (auto* tile = std::get_if<Tile>(&task.work); tile != nullptr && !tile->adds.empty()) {
      tile->adds.pop_back();
      break;
    }
  EXPECT_EQ(adding_pairs(), 0u);
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
        ASSERT_TRUE(y.kind == TaskKind::partner && x.task == y.task && tiles.contains(x.task));
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
      EXPECT_EQ(table.partners, table.tiles);
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
