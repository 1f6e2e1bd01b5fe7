// Tables of problems with several B for one gathered A, and of those that give it, without a GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "cuda_tables.hpp"
#include "plan/operand_buffers.hpp"
#include "plan/problem.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using namespace imbrex::cuda;
using test::refusal;
using test::table_of;

constexpr TileShape single{128, 128, 1, true, 16, 16}, pairs{128, 128, 2, true, 16, 16};

Problem three_outputs() {
  Problem problem{Operator::all_gather_gemm, 1024, 1024, 256, 4, Type::bf16, true};
  problem.more_n = {512, 1536};
  problem.gathered_a = true;
  return problem;
}

Plan plan_of(const Problem& problem, Transport transport) {
  return make_plan(problem, Strategy::fused, {.transport = transport});
}

// The entries of one queue, in its order, say of each task which output it is of, and where in it.
void expect_outputs(const Plan& plan, int rank) {
  const Problem& p = plan.problem;
  const RankTable table = table_of(plan, rank, single);
  std::size_t queue = 0;
  const auto& queues = plan.ranks[static_cast<std::size_t>(rank)].queues;
  for (const Queue& q : queues) {
    if (q.engine != Engine::compute) continue;
    ASSERT_EQ(table.queues.at(queue).count, q.tasks.size());
    const TaskEntry* entry = table.tasks.data() + table.queues[queue++].first;
    for (const Task& task : q.tasks) {
      const TaskEntry& e = *entry++;
      const RegionEntry* regions = table.regions.data() + e.regions;
      const auto expect_at = [&](const RegionEntry& r, const Region& to, std::int64_t cols) {
        const auto element = static_cast<std::int64_t>(size_of(plan.buffers[static_cast<std::size_t>(to.buffer)].type));
        EXPECT_EQ(r.base, Base::out);
        EXPECT_EQ(r.pitch, static_cast<std::uint64_t>(cols * element));
        EXPECT_EQ(r.address, static_cast<std::uint64_t>((to.row * cols + to.col) * element));
      };
      if (const auto* tile = std::get_if<Tile>(&task.work)) {
        const plan::OperandPlace b = plan::operand_at(p, tile->b.buffer);
        ASSERT_EQ(b.what, plan::OperandPlace::What::b);
        EXPECT_EQ(e.output, static_cast<std::uint32_t>(b.product));
        EXPECT_EQ(e.b_col, static_cast<std::uint32_t>(tile->b.col));
        const Region& to = tile->stores.front().to;
        if (to.buffer >= plan::count_operands(p)) continue;  // a split-K sum
        EXPECT_EQ(to.buffer, plan::buffer_out_of(p, b.product));
        EXPECT_EQ(e.bias != 0, p.bias);
        expect_at(regions[e.adds], to, plan::cols_of(p, b.product));
      } else if (const auto* transfer = std::get_if<Transfer>(&task.work);
                 transfer != nullptr && p.gathered_a && transfer->to.buffer == plan::buffer_gathered(p)) {
        EXPECT_EQ(e.output, static_cast<std::uint32_t>(gathered_output));
        EXPECT_EQ(regions[0].base, transfer->from.buffer == plan::buffer_a ? Base::a : Base::heap);
        if (regions[1].rows > 1 || transfer->to.rows == 1) expect_at(regions[1], transfer->to, p.k);
      } else {
        EXPECT_EQ(e.output, 0u);
      }
    }
  }
}

TEST(CudaOutputs, EachTaskSaysWhichOneItIsOf) {
  test::Random random(test::seed_from_environment());
  int lists = 0, gathered = 0;
  for (int i = 0; i < 60; ++i) {
    Problem p{Operator::all_gather_gemm, 0, 0, 0, random.one_of({1, 2, 4}), Type::bf16, random.chance(0.5)};
    test::set_type(random, p, random.one_of({Type::bf16, Type::fp16, Type::e4m3}));
    p.m = p.ranks * random.between(1, 600);
    p.n = p.ranks * random.between(1, 300);
    p.k = 8 * random.between(1, 60);
    test::add_further(random, p, 900);
    lists += plan::count_products(p) > 1 ? 1 : 0;
    gathered += p.gathered_a ? 1 : 0;
    const Knobs knobs{.transport = random.one_of({Transport::push, Transport::store}),
                      .split_k = random.one_of({1, 1, 2}),
                      .span_shards = random.chance(0.3) && p.scales != Scales::tensor};
    SCOPED_TRACE(test::describe({p, Strategy::fused, knobs}));
    const Plan plan = make_plan(p, Strategy::fused, knobs);
    ASSERT_FALSE(check(plan).has_value());
    for (int rank = 0; rank < p.ranks; ++rank) expect_outputs(plan, rank);
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(lists, 10);
  EXPECT_GT(gathered, 10);
}

// Blocks that load B together load the same one; what fills up a pair loads its tile's.
TEST(CudaOutputs, PairsAreOfOneProduct) {
  const RankTable table = table_of(plan_of(three_outputs(), Transport::store), 1, pairs);
  std::set<std::uint32_t> products;
  ASSERT_EQ(table.tasks.size() % 2, 0u);
  for (std::size_t i = 0; i < table.tasks.size(); i += 2) {
    const TaskEntry &first = table.tasks[i], &second = table.tasks[i + 1];
    if (first.kind != TaskKind::tile) continue;
    EXPECT_EQ(first.output, second.output);
    EXPECT_EQ(first.b_col, second.b_col);
    products.insert(first.output);
  }
  EXPECT_EQ(products, (std::set<std::uint32_t>{0, 1, 2}));
}

// The gathered A is handed out by workers, in pieces that they share, wherever they get it from.
TEST(CudaOutputs, WorkersHandOutTheGatheredA) {
  for (const Transport transport : {Transport::push, Transport::store}) {
    const Plan plan = plan_of(three_outputs(), transport);
    const RankTable table = table_of(plan, 2, single);
    std::uint64_t bytes = 0, own = 0, pieces = 0;
    for (const TaskEntry& e : table.tasks) {
      if (e.kind != TaskKind::transfer || e.output != gathered_output) continue;
      const RegionEntry &from = table.regions[e.regions], &to = table.regions[e.regions + 1];
      EXPECT_EQ(to.base, Base::out);
      EXPECT_EQ(e.load_waits > 0, from.base == Base::heap);  // what this rank has, it need not wait for
      const std::uint64_t size = std::uint64_t{to.rows} * to.cols * size_of(to.type);
      bytes += size;
      if (from.base == Base::a) own += size;
      ++pieces;
    }
    EXPECT_EQ(bytes, 1024u * 256 * 2);
    EXPECT_EQ(own, bytes / 4);
    EXPECT_GE(pieces, 64u);
    for (const CopyStep& step : table.copies) EXPECT_EQ(step.to.base, Base::heap);
  }
}

TEST(CudaOutputs, RefusesWhatIsOfTwo) {
  const Problem problem = three_outputs();
  const auto refused = [&](auto&& spoil) {
    Plan plan = plan_of(problem, Transport::store);
    for (Queue& queue : plan.ranks[0].queues)
      for (Task& task : queue.tasks)
        if (auto* tile = std::get_if<Tile>(&task.work);
            tile != nullptr && tile->b.buffer == plan::buffer_b_of(problem, 1)) {
          spoil(*tile);
          return refusal(plan, single);
        }
    return std::string("there is no such tile");
  };
  const auto expect = [&](const std::string& text, const char* words) {
    EXPECT_NE(text.find(words), std::string::npos) << text;
  };
  EXPECT_EQ(refused([](Tile&) {}), "");
  expect(refused([&](Tile& t) { t.stores.front().to.buffer = plan::buffer_out_of(problem, 2); }),
         "touches out2, which is of another product than the task's others");
  expect(refused([&](Tile& t) { t.adds.back().buffer = plan::buffer_bias_of(problem, 0); }),
         "touches bias, which is of another product");
  expect(refused([&](Tile& t) { t.b.buffer = plan::buffer_bias_of(problem, 1); }), "with the same rows of B");
}

// Regions in the caller's memory are as far apart as its rows, those in the heap have no gaps; nothing else differs.
TEST(CudaOutputs, RowsLieAsTheProblemSays) {
  test::Random random(test::seed_from_environment() + 9);
  int outputs = 0, sources = 0;
  for (int i = 0; i < 60; ++i) {
    Problem p{static_cast<Operator>(i % 4), 0, 0, 0, random.one_of({1, 2, 4}), Type::bf16, random.chance(0.5)};
    p.m = p.ranks * random.between(1, 400);
    p.n = p.ranks * random.between(1, 300);
    p.k = 8 * p.ranks * random.between(1, 30);
    if (p.op == Operator::all_gather_gemm) test::add_further(random, p, 900);
    const Knobs knobs{.transport = p.op == Operator::all_gather_gemm
                                       ? random.one_of({Transport::push, Transport::store})
                                       : Transport::store};
    const Plan plain = make_plan(p, Strategy::fused, knobs);
    Problem spread = p;
    test::add_pitches(random, spread);
    const Plan plan = make_plan(spread, Strategy::fused, knobs);
    const execute::HeapLayout layout(plan);
    SCOPED_TRACE(test::describe({spread, Strategy::fused, knobs}));
    for (int rank = 0; rank < p.ranks; ++rank) {
      const RankTable table = table_of(plan, rank, single), before = table_of(plain, rank, single);
      ASSERT_EQ(table.regions.size(), before.regions.size());
      const std::vector<OperandInfo> infos = operands_of(spread);
      const auto info = [&](std::string_view name) {
        return *std::find_if(infos.begin(), infos.end(), [&](const OperandInfo& o) { return o.name == name; });
      };
      const auto expect_moved = [&](const RegionEntry& now, const RegionEntry& then, const OperandInfo& operand) {
        const auto length = static_cast<std::uint64_t>(operand.cols) * 2,
                   pitch = operand.pitch == 0 ? length : static_cast<std::uint64_t>(operand.pitch) * 2;
        EXPECT_EQ(now.address, then.address / length * pitch + then.address % length);
        EXPECT_TRUE(now.rows == 1 || now.pitch == pitch);
      };
      for (const TaskEntry& task : table.tasks)
        for (std::uint32_t r = task.regions; r < task.regions + task.adds + task.stores; ++r) {
          const RegionEntry &now = table.regions[r], &then = before.regions[r];
          if (now.base == Base::out && task.output != gathered_output && !layout.in_heap(plan::buffer_out)) {
            expect_moved(now, then, info(plan::name_of_out(static_cast<int>(task.output))));
            ++outputs;
          } else if (now.base == Base::a) {
            if (now.rows == then.rows) expect_moved(now, then, info("a"));
            ++sources;
          } else {
            EXPECT_EQ(std::memcmp(&now, &then, sizeof now), 0);
          }
        }
      ASSERT_EQ(table.copies.size(), before.copies.size());
      for (std::size_t c = 0; c < table.copies.size(); ++c) {
        const RegionEntry &now = table.copies[c].from, &then = before.copies[c].from;
        if (now.base == Base::a) expect_moved(now, then, info("a")), ++sources;
        EXPECT_EQ(std::memcmp(&table.copies[c].to, &before.copies[c].to, sizeof now), 0);
      }
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(outputs, 100);
  EXPECT_GT(sources, 100);
}

TEST(CudaOutputs, TensorMemoryTakesRowsThatLieWhole16BytesApart) {
  Problem p = three_outputs();
  p.lda = 264, p.ldb = 264, p.ldo = 257, p.more_ldb = {136, 0}, p.more_ldo = {129, 385};
  EXPECT_EQ(refusal_of_tma(p), "");  // tiles are stored to any rows
  p.more_ldb[0] = 130;
  EXPECT_EQ(refusal_of_tma(p), "rows of b1 that lie 130 elements apart, not a multiple of 8");
  p.lda = 257;
  EXPECT_EQ(refusal_of_tma(p), "rows of a that lie 257 elements apart, not a multiple of 8");
  p = {Operator::gemm_all_reduce, 64, 64, 64, 1, Type::e4m3};
  p.ldb = 72;
  EXPECT_EQ(refusal_of_tma(p), "rows of b that lie 72 elements apart, not a multiple of 16");
}

TEST(CudaOutputs, TensorMemoryTakesEachB) {
  Problem p = three_outputs();
  EXPECT_EQ(refusal_of_tma(p), "");
  p.more_n[1] = 4 * 380;
  EXPECT_EQ(refusal_of_tma(p), "rows of B of 380 elements, not a multiple of 8");
  p.b_layout = Layout::column_major;
  EXPECT_EQ(refusal_of_tma(p), "");
  p.more_n[0] = 4 * 127;
  EXPECT_EQ(refusal_of_tma(p), "results of 127 columns, not a multiple of 2");
}

}  // namespace
}  // namespace imbrex
