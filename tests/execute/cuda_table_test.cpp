// The translation of plans to the CUDA executor's tables, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "cuda_tables.hpp"
#include "execute/cuda/products/tensor_maps.hpp"
#include "plan/builder.hpp"
#include "plan/rank_plan.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using namespace imbrex::cuda;
using test::plan_of;
using test::pretend_heap;
using test::refusal;
using test::same_bytes;
using test::scatter_knobs;
using test::table_of;
using test::table_or_refusal;

using Stretch = std::pair<std::uint32_t, std::uint32_t>;

// Every block's tiles cut K between them; all but the last keep their sums in fp32, which the last adds from memory.
TEST(CudaTable, PartsOfKAreAddedByTheLastOne) {
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (int cluster : {1, 2}) {
      Knobs knobs = scatter_knobs();
      knobs.split_k = 3;
      const Problem problem{op, 1100, 520, 4 * 500, 4, Type::bf16, true};
      const auto depth = static_cast<std::uint32_t>(shapes_of(problem).depth);
      const Plan plan = make_plan(problem, Strategy::fused, knobs);
      const RankTable table = table_of(plan, 2, {128, 128, cluster, true, 16, 16});
      std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::set<Stretch>> blocks;
      std::size_t sums = 0;
      for (const TaskEntry& entry : table.tasks) {
        if (entry.kind != TaskKind::tile) continue;
        blocks[{entry.a_source, entry.a_row, entry.b_col}].insert({entry.k_begin, entry.k_end});
        EXPECT_EQ(entry.k_begin % plan::k_unit, 0u);
        const RegionEntry* regions = table.regions.data() + entry.regions;
        const auto is_part = [](const RegionEntry& r) { return r.type == Type::fp32 && r.copy_stride == 0; };
        EXPECT_EQ(entry.slot_stages, 0u);
        if (entry.k_end < depth) {
          ASSERT_TRUE(entry.stores == 1 && entry.adds == 0 && entry.bias == 0 && entry.epilogue_waits == 0);
          EXPECT_TRUE(is_part(regions[0]) && regions[0].order == SlotOrder::registers);
          ASSERT_EQ(entry.post_count, 1u);
          continue;
        }
        ++sums;
        const std::uint32_t peers = entry.adds - 2u;
        EXPECT_TRUE(peers == 0 || peers == 3);
        for (std::uint32_t s = 0; s < entry.adds; ++s)
          EXPECT_EQ(is_part(regions[s]), s + 2 >= entry.own && s < entry.own) << s;
        ASSERT_GE(entry.epilogue_waits, 1u);
        const WaitEntry& wait = table.waits[entry.waits + entry.load_waits];
        EXPECT_TRUE(wait.count == 2 && wait.posts == 2);
      }
      EXPECT_EQ(blocks.size(), sums);
      for (const auto& [block, stretches] : blocks) {
        std::uint32_t k = 0;
        for (const auto& [begin, end] : stretches) {
          EXPECT_EQ(begin, k);
          k = end;
        }
        EXPECT_EQ(k, depth);
      }
    }
}

TEST(CudaTable, SlotsComeThroughTheStagesUnlessOneIsInFp32) {
  for (int parts : {1, 2}) {
    Knobs knobs = scatter_knobs();
    knobs.split_k = parts;
    const Plan plan = plan_of(Operator::gemm_reduce_scatter, knobs, 512, 256, 1024, 2);
    std::size_t staged = 0;
    for (const TaskEntry& entry : table_of(plan, 0, {128, 128, 1, true, 16, 16}).tasks) staged += entry.slot_stages > 0;
    EXPECT_EQ(staged, parts == 1 ? 4u : 0u);
  }
}

TEST(CudaTable, NoStageBringsATilesSlotsTwiceToAPair) {
  TileShape shape{128, 224, 2, true, 14, 11, Sharing::b, 64, 4};
  EXPECT_EQ(slot_stages_of(shape, 1), 2u);
  EXPECT_EQ(slot_stages_of(shape, 3), 0u);  // five
  shape.cluster = 1;
  EXPECT_EQ(slot_stages_of(shape, 3), 5u);
}

TEST(CudaTable, RefusesStretchesOfKBetweenItsUnits) {
  Knobs knobs = scatter_knobs();
  knobs.split_k = 2;
  const auto refused = [&](std::int64_t a_col, std::int64_t a_cols, std::int64_t b_row) {
    Plan plan = plan_of(Operator::gemm_all_to_all, knobs, 512, 256, 512);
    for (Task& task : plan.ranks[0].queues[0].tasks)
      if (auto* tile = std::get_if<Tile>(&task.work); tile != nullptr) {
        tile->a.col = a_col;
        tile->b.row = b_row;
        tile->a.cols = tile->b.rows = a_cols;
        break;
      }
    return refusal(plan, {128, 128, 1, true});
  };
  EXPECT_EQ(refused(128, 256, 128), "");
  EXPECT_EQ(refused(384, 128, 384), "");
  EXPECT_NE(refused(64, 256, 64).find("columns 64+256 of A: the CUDA executor cuts K at multiples of 128"),
            std::string::npos);
  EXPECT_NE(refused(0, 200, 0).find("columns 0+200 of A: the CUDA executor cuts K at multiples of 128"),
            std::string::npos);
  EXPECT_NE(refused(0, 256, 128).find("with the same rows of B"), std::string::npos);
}

TEST(CudaTable, PostsAndWaitsBalance) {
  for (Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                      Operator::gemm_all_to_all}) {
    const Plan plan = plan_of(op, op == Operator::all_gather_gemm ? Knobs{} : scatter_knobs());
    const execute::HeapLayout layout(plan);
    std::map<std::uint64_t, std::uint32_t> posted;  // by the counter's offset from the heap's base
    for (int rank = 0; rank < 4; ++rank) {
      const RankTable table = table_of(plan, rank, {128, 128, 2, true});
      for (const PostEntry& post : table.posts) ++posted[post.counter];
      for (const CopyStep& copy : table.copies)
        if (copy.flag) ++posted[copy.counter];
    }
    for (int rank = 0; rank < 4; ++rank)
      for (const WaitEntry& wait : table_of(plan, rank, {128, 128, 2, true}).waits) {
        const auto counter = reinterpret_cast<std::uint64_t>(
            pretend_heap(rank).at(rank, 4096 + layout.counter(static_cast<int>(wait.signal), 0)));
        EXPECT_EQ(posted[counter], wait.posts);
        EXPECT_LE(wait.count, wait.posts);
      }
  }
}

TEST(CudaTable, TailTilesKeepTheirSize) {
  const RankTable table =
      table_of(plan_of(Operator::gemm_reduce_scatter, scatter_knobs(), 4 * 130, 136, 64), 2, {128, 128, 1, true});
  std::multiset<std::pair<std::uint32_t, std::uint32_t>> sizes;
  for (const TaskEntry& entry : table.tasks)
    if (entry.kind == TaskKind::tile) sizes.insert({entry.rows, entry.cols});
  EXPECT_EQ(sizes.count({128, 128}), 4u);
  EXPECT_EQ(sizes.count({2, 128}), 4u);
  EXPECT_EQ(sizes.count({128, 8}), 4u);
  EXPECT_EQ(sizes.count({2, 8}), 4u);
  for (const RegionEntry& region : table.regions)
    if (region.order == SlotOrder::registers) {
      EXPECT_EQ(region.address % 16, 0u);
    }
}

// Slots keep their number and place, and come through the stages as they do without a bias.
TEST(CudaTable, TheBiasIsAddedBehindTheSlotsByTilesWhoseSumIsComplete) {
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (Reducer reducer : {Reducer::tile, Reducer::tail}) {
      Knobs knobs = op == Operator::all_gather_gemm ? Knobs{} : scatter_knobs();
      if (op != Operator::all_gather_gemm) knobs.reducer = reducer;
      Problem problem{op, 1024, 512, 256, 4, Type::bf16};
      const Plan without = make_plan(problem, Strategy::fused, knobs);
      problem.bias = true;
      const Plan with = make_plan(problem, Strategy::fused, knobs);
      const bool sums = op == Operator::gemm_reduce_scatter || op == Operator::gemm_all_reduce;
      const TileShape shape{128, 128, 2, true};
      const RankTable x = table_of(without, 1, shape), y = table_of(with, 1, shape);
      ASSERT_EQ(x.tasks.size(), y.tasks.size());
      std::size_t biased = 0, reductions = 0;
      for (std::size_t i = 0; i < x.tasks.size(); ++i) {
        const TaskEntry &u = x.tasks[i], &v = y.tasks[i];
        ASSERT_EQ(u.task, v.task);
        EXPECT_EQ(u.own, v.own);
        EXPECT_EQ(u.slot_stages, v.slot_stages);
        EXPECT_EQ(u.bias, 0u);
        reductions += v.kind == TaskKind::reduction;
        EXPECT_EQ(v.adds, u.adds + (v.kind == TaskKind::reduction ? 1 : 0));
        EXPECT_EQ(v.bias, v.kind == TaskKind::tile && (!sums || v.adds > 0) ? 1u : 0u);
        biased += v.bias;
        if (v.kind == TaskKind::reduction) {
          const RegionEntry& last = y.regions[v.regions + v.adds - 1u];
          EXPECT_EQ(last.base, Base::bias);
          EXPECT_EQ(last.pitch, 0u);
        }
      }
      EXPECT_EQ(biased > 0, !sums || reducer == Reducer::tile);
      EXPECT_EQ(reductions > 0, sums && reducer == Reducer::tail);
    }
}

TEST(CudaTable, RefusesTheBiasOfOtherColumns) {
  Plan plan =
      make_plan({Operator::gemm_all_to_all, 512, 512, 64, 2, Type::bf16, true}, Strategy::fused, scatter_knobs());
  for (Task& task : plan.ranks[0].queues[0].tasks)
    if (auto* tile = std::get_if<Tile>(&task.work); tile != nullptr && tile->b.col == 128) tile->adds.back().col = 256;
  EXPECT_NE(refusal(plan, {128, 128, 1, true}).find("the bias from column 256 on is added to columns from 128 on"),
            std::string::npos);
}

TEST(CudaTable, ScalesComeWithGatheredRows) {
  for (const Scales scales : {Scales::tensor, Scales::row})
    for (const Transport transport : {Transport::push, Transport::store}) {
      Knobs knobs;
      knobs.transport = transport;
      const Problem problem{Operator::all_gather_gemm, 1024, 512, 256, 4, Type::e4m3, false, scales};
      const RankTable table = table_of(make_plan(problem, Strategy::fused, knobs), 3, {128, 128, 1, true});
      const std::int64_t count = scales == Scales::row ? 256 : 1;
      ASSERT_GE(table.gathered_scales, 0);
      std::size_t transfers = 0;
      for (const TaskEntry& entry : table.tasks) {
        if (entry.kind == TaskKind::transfer && table.regions[entry.regions].base == Base::a_scale) {
          const RegionEntry &from = table.regions[entry.regions], &to = table.regions[entry.regions + 1];
          EXPECT_EQ(from.address, 0u);
          EXPECT_TRUE(from.type == Type::fp32 && from.rows == 1 && from.cols == count && to.cols == count);
          EXPECT_EQ(to.pitch, 4 * from.cols);
          EXPECT_TRUE(to.copy_stride > 0 && entry.post_count == 1 && entry.load_waits == 0);
          ++transfers;
        }
        if (entry.kind == TaskKind::tile && scales == Scales::tensor) {
          EXPECT_EQ(entry.a_scale, entry.a_source == 0 ? 0 : entry.a_row / 256);
        }
      }
      EXPECT_EQ(transfers, 3u);
    }
}

TEST(CudaTable, RefusesScalesOfOtherRowsThanTheTiles) {
  const Problem problem{Operator::gemm_reduce_scatter, 1024, 512, 256, 4, Type::e4m3, false, Scales::row};
  Plan plan = make_plan(problem, Strategy::fused, scatter_knobs());
  std::get<Tile>(plan.ranks[0].queues[0].tasks[0].work).a_scale.row += 1;
  EXPECT_NE(refusal(plan, {128, 128, 1, true}).find("the CUDA executor takes them from the same row on"),
            std::string::npos);
}

TEST(CudaTable, TensorMemoryTakesBByColumnsByDepthsOf16BytesAndTwoColumns) {
  const auto refusal_of = [](std::int64_t n, std::int64_t k, std::int64_t tile_n, Type type) {
    Knobs knobs = scatter_knobs();
    knobs.tile_n = tile_n;
    Problem problem{Operator::gemm_reduce_scatter, 256, n, k, 2, type};
    if (type != Type::e4m3) problem.b_layout = Layout::column_major;
    return refusal_of_tma(make_plan(problem, Strategy::fused, knobs));
  };
  for (Type type : {Type::bf16, Type::fp16, Type::e4m3}) {
    EXPECT_EQ(refusal_of(264, 544, 128, type), "");
    EXPECT_EQ(refusal_of(262, 544, 100, type), "");
    EXPECT_EQ(refusal_of(261, 544, 128, type), "results of 261 columns, not a multiple of 2");
    EXPECT_EQ(refusal_of(264, 544, 101, type), "a tile from column 101 on, not a multiple of 2");
  }
  EXPECT_EQ(refusal_of(264, 528, 128, Type::e4m3), "rows of A of 264 elements, not a multiple of 16");
  EXPECT_EQ(refusal_of(264, 528, 128, Type::bf16), "");
  EXPECT_EQ(refusal_of(264, 520, 128, Type::fp16), "rows of A of 260 elements, not a multiple of 8");
}

TEST(CudaTable, AllGatherReadsTheOwnShardInPlaceAndPushesTheRest) {
  Knobs knobs;
  knobs.comm_rows = 64;
  const Plan plan = plan_of(Operator::all_gather_gemm, knobs);
  const RankTable table = table_of(plan, 3, {128, 128, 2, true});
  EXPECT_EQ(table.copies.size(), 3u * 4u);
  for (const CopyStep& copy : table.copies)
    EXPECT_TRUE(copy.from.base == Base::a && copy.flag && !copy.local && copy.to.copy_stride > 0);
  for (const TaskEntry& entry : table.tasks)
    if (entry.kind == TaskKind::tile) {
      EXPECT_EQ(entry.a_source == 0, entry.load_waits == 0);
    }
}

TEST(CudaTable, WorkersAreReservedAtTheEnd) {
  Knobs knobs = scatter_knobs();
  knobs.reducer = Reducer::reserved;
  RankTable table = table_of(plan_of(Operator::gemm_reduce_scatter, knobs), 0, {128, 128, 1, true});
  place_workers(table.queues, 132);
  ASSERT_EQ(table.queues.size(), 2u);
  EXPECT_EQ(table.queues[0].first_worker, 0u);
  EXPECT_EQ(table.queues[0].workers, 128u);
  EXPECT_EQ(table.queues[1].first_worker, 128u);
  EXPECT_EQ(table.queues[1].workers, 4u);
  EXPECT_THROW(place_workers(table.queues, 4), Error);
}

TEST(CudaTable, RefusalsNameTheTaskAndTheReason) {
  const TileShape shape{128, 128, 1, true};
  Knobs pull;
  pull.transport = Transport::pull;
  EXPECT_NE(refusal(plan_of(Operator::all_gather_gemm, pull), shape).find("does not run copies that wait"),
            std::string::npos);
  EXPECT_NE(
      refusal(plan_of(Operator::gemm_reduce_scatter, {}), {128, 128, 1, false}).find("does not run copies that wait"),
      std::string::npos);
  EXPECT_NE(refusal(plan_of(Operator::gemm_reduce_scatter, {}), shape).find("in its register order only"),
            std::string::npos);
  // Lanes beside the kernel run library queues, whose tasks its tables leave out.
  EXPECT_EQ(refusal(make_plan({Operator::all_gather_gemm, 64, 64, 64, 2, Type::bf16}, Strategy::sequential, {}), shape),
            "");
  Knobs wide = scatter_knobs();
  wide.tile_n = 256;
  EXPECT_NE(refusal(plan_of(Operator::gemm_reduce_scatter, wide), shape).find("does not fit the kernel's 128 x 128"),
            std::string::npos);
  Knobs small = scatter_knobs();
  small.tile_n = 64;
  const Plan narrow = plan_of(Operator::gemm_reduce_scatter, small);
  EXPECT_FALSE(fits(narrow, survey_of(narrow, 0), shape));
  EXPECT_NE(refusal(plan_of(Operator::gemm_reduce_scatter, small), shape).find("do not hold the registers"),
            std::string::npos);
  Plan copies = plan_of(Operator::all_gather_gemm, {});
  EXPECT_EQ(refusal(copies, shape), "");
  auto& queue = copies.ranks[0].queues[1].tasks;
  Task within = queue.front();
  std::get<Transfer>(within.work).to.rank = 0;
  within.posts.clear();
  queue.push_back(within);
  EXPECT_NE(refusal(copies, shape).find("so they come first in the queue"), std::string::npos);
  std::rotate(queue.begin(), queue.end() - 1, queue.end());
  EXPECT_EQ(refusal(copies, shape), "");
  std::get<Transfer>(queue[1].work).from = std::get<Transfer>(within.work).to;
  EXPECT_NE(refusal(copies, shape).find("peers get what the caller gave"), std::string::npos);
  Plan two = plan_of(Operator::gemm_reduce_scatter, scatter_knobs());
  auto& queues = two.ranks[0].queues;
  queues.push_back({Engine::compute, 0, {}});
  EXPECT_EQ(refusal(two, shape), "");
  queues[1].tasks.push_back(queues[0].tasks.front());
  EXPECT_NE(refusal(two, shape).find("queues 0 and 1 reserve no workers"), std::string::npos);
  queues[1].workers = 4;
  EXPECT_EQ(refusal(two, shape), "");
}

TEST(CudaTable, IsTheSameFromOneRanksPlan) {
  test::Random random(test::seed_from_environment());
  int tables = 0;
  for (int i = 0; i < 300; ++i) {
    auto c = test::random_case(random, {.max_ranks = 8, .max_size = 700});
    c.strategy = Strategy::fused;
    c.knobs = test::random_knobs(random, c.problem, c.strategy);
    SCOPED_TRACE(test::describe(c));
    const int rank = static_cast<int>(random.between(0, c.problem.ranks - 1));
    const Plan whole = make_plan(c.problem, c.strategy, c.knobs),
               one = plan::make_rank_plan(c.problem, c.strategy, c.knobs, rank);
    const Extent largest = largest_tile(whole);
    EXPECT_EQ(largest.rows, largest_tile(one).rows);
    EXPECT_EQ(largest.cols, largest_tile(one).cols);
    // Which of the tiles that cannot be loaded they name, depends on whose come first.
    EXPECT_EQ(refusal_of_tma(whole).empty(), refusal_of_tma(one).empty());
    EXPECT_EQ(execute::HeapLayout(whole).bytes(), execute::HeapLayout(one).bytes());
    const TileShape shape{128, 128, static_cast<int>(random.between(1, 2)), false};
    RankTable x, y;
    ASSERT_EQ(table_or_refusal(whole, rank, shape, x), table_or_refusal(one, rank, shape, y));
    ASSERT_TRUE(same_bytes(x.tasks, y.tasks) && same_bytes(x.waits, y.waits) && same_bytes(x.regions, y.regions) &&
                same_bytes(x.posts, y.posts) && same_bytes(x.queues, y.queues));
    ASSERT_EQ(x.copies.size(), y.copies.size());
    for (std::size_t s = 0; s < x.copies.size(); ++s) {
      ASSERT_EQ(std::memcmp(&x.copies[s].from, &y.copies[s].from, sizeof(RegionEntry)), 0);
      ASSERT_EQ(std::memcmp(&x.copies[s].to, &y.copies[s].to, sizeof(RegionEntry)), 0);
      ASSERT_EQ(x.copies[s].counter, y.copies[s].counter);
    }
    ASSERT_EQ(x.gathered, y.gathered);
    ASSERT_EQ(x.peer_ctas, y.peer_ctas);
    tables += !x.tasks.empty();
  }
  EXPECT_GT(tables, 100);
}

// A map that knows what it was made from.
struct PretendMap {
  TensorMapKey key;
};

// Keys that differ in one thing each, and come in any order: none gets another's map, and none is made twice.
TEST(CudaTensorMaps, BelongToAllThatTheyWereMadeFrom) {
  static const char memory[1 << 16] = {};
  const TensorMapKey first{memory, false, memory + 512, 1024, 256, 256};
  std::vector<TensorMapKey> keys(8, first);
  keys[1].kernel = memory + 64;
  keys[2].operand_b = true;
  keys[3].address = memory + 528;
  keys[4].rows = 1025;
  keys[5].cols = 264;
  std::swap(keys[6].rows, keys[6].cols);
  keys[7].pitch = 264;
  // Its hash is that of operand B, 256 bytes before it.
  keys.push_back({memory, false, memory + 768, 1024, 256, 256});
  KeptMaps<PretendMap> maps;
  test::Random random(test::seed_from_environment());
  std::size_t made = 0;
  for (int i = 0; i < 2000; ++i) {
    const TensorMapKey& key = keys[static_cast<std::size_t>(random.between(0, std::ssize(keys) - 1))];
    const PretendMap map = maps.get(key, [&] { return ++made, PretendMap{key}; });
    ASSERT_TRUE(map.key == key);
  }
  EXPECT_EQ(made, keys.size());
  EXPECT_EQ(maps.size(), keys.size());
}

TEST(CudaTensorMaps, DoNotPileUp) {
  KeptMaps<PretendMap> maps;
  for (std::size_t i = 1; i <= 3 * maps.most; ++i) {
    const TensorMapKey key{nullptr, false, reinterpret_cast<const void*>(i * 16), 8, 8, 8};
    ASSERT_TRUE(maps.get(key, [&] { return PretendMap{key}; }).key == key);
    ASSERT_LE(maps.size(), maps.most);
  }
}

TEST(CudaTable, SaysWhatTensorMemoryLoadsCannotTake) {
  EXPECT_EQ(refusal_of_tma(plan_of(Operator::gemm_reduce_scatter, scatter_knobs())), "");
  EXPECT_NE(refusal_of_tma(plan_of(Operator::gemm_reduce_scatter, scatter_knobs(), 64, 20, 64)).find("rows of B"),
            std::string::npos);
  EXPECT_NE(refusal_of_tma(plan_of(Operator::gemm_reduce_scatter, scatter_knobs(), 64, 32, 36)).find("rows of A"),
            std::string::npos);
  Problem by_columns{Operator::gemm_reduce_scatter, 64, 32, 64, 2, Type::bf16};
  by_columns.b_layout = Layout::column_major;
  EXPECT_EQ(refusal_of_tma(by_columns), "");
  by_columns.type = Type::e4m3, by_columns.b_layout = Layout::row_major;  // as an e4m3 problem says it
  EXPECT_EQ(refusal_of_tma(by_columns), "");
  // Few rows: an all-reduce splits columns, here at 50, 100 and 150.
  EXPECT_NE(refusal_of_tma(plan_of(Operator::gemm_all_reduce, scatter_knobs(), 64, 200, 64)).find("from column"),
            std::string::npos);
}

// Kernels count a row's bytes in 32 bits.
TEST(CudaTable, RefusesTransfersOfRowsOf4GiB) {
  const auto gather = [](std::int64_t k) {
    return make_plan({Operator::all_gather_gemm, 256, 256, k, 2, Type::fp32}, Strategy::fused,
                     {.transport = Transport::store, .k_slices = 1});
  };
  const cuda::TileShape shape{128, 128, 1, true};
  EXPECT_EQ(refusal(gather((std::int64_t{1} << 30) - 32), shape).find("4 GiB"), std::string::npos);
  const std::string said = refusal(gather(std::int64_t{1} << 30), shape);
  EXPECT_NE(said.find("of 4294967296 bytes: rows must be shorter than 4 GiB"), std::string::npos) << said;
}

}  // namespace
}  // namespace imbrex
