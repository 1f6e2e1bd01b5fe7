// Products cut along K: sound whatever the rest of the plan, the sum in the order of K, and refused when broken.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "imbrex/error.hpp"
#include "plan/rank_plan.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

const Buffer& buffer(const Plan& plan, const Region& r) { return plan.buffers[static_cast<std::size_t>(r.buffer)]; }
bool is_part(const Plan& plan, const Region& r) { return buffer(plan, r).name == "parts"; }

using Block = std::array<std::int64_t, 4>;  // of A: buffer and first row; first column of B; rank

// The stretches of K of every block's tiles, in the order of the queue; the last one's is the one with adds from parts.
std::map<Block, std::vector<std::pair<std::int64_t, std::int64_t>>> stretches(const Plan& plan) {
  std::map<Block, std::vector<std::pair<std::int64_t, std::int64_t>>> found;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks)
        if (const auto* tile = std::get_if<Tile>(&task.work))
          found[{tile->a.buffer, tile->a.row, tile->b.col, tile->b.rank}].push_back(
              {tile->a.col, tile->a.col + tile->a.cols});
  return found;
}

// Deep enough for several cuts on each of up to four ranks.
test::RandomCase deep_case(test::Random& random) {
  test::RandomCase c{
      test::random_problem(random, {.max_ranks = 4, .max_size = 300, .bias = true, .e4m3 = true}), Strategy::fused, {}};
  const bool sharded = c.problem.op == Operator::gemm_reduce_scatter || c.problem.op == Operator::gemm_all_reduce;
  c.problem.k = random.between(1, 1300) * (sharded ? c.problem.ranks : 1);
  c.knobs = test::random_knobs(random, c.problem, c.strategy);
  c.knobs.split_k = static_cast<int>(random.between(1, 5));
  c.knobs.cluster_k = 1;
  return c;
}

TEST(SplitK, PlansAreSoundAndCutKEvenlyAtWholeUnits) {
  test::Random random(test::seed_from_environment());
  int split = 0;
  for (int i = 0; i < 400; ++i) {
    const auto c = deep_case(random);
    SCOPED_TRACE(test::describe(c));
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    const auto finding = check(plan);
    ASSERT_FALSE(finding.has_value()) << name_of(finding->fault) << ": " << finding->message;
    const std::int64_t depth = shapes_of(c.problem).depth, units = (depth + 127) / 128;
    const std::int64_t parts = std::min<std::int64_t>(c.knobs.split_k, units);
    split += parts > 1;
    for (const auto& [block, cuts] : stretches(plan)) {
      ASSERT_EQ(std::ssize(cuts), parts);
      std::int64_t k = 0, most = 0, least = units;
      for (const auto& [begin, end] : cuts) {
        ASSERT_EQ(begin, k);
        ASSERT_TRUE(end % 128 == 0 || end == depth) << end;
        most = std::max(most, (end - begin + 127) / 128);
        least = std::min(least, (end - begin + 127) / 128);
        k = end;
      }
      ASSERT_EQ(k, depth);
      ASSERT_LE(most - least, 1);
      ASSERT_EQ((cuts.back().second - cuts.back().first + 127) / 128, most);
    }
    ASSERT_EQ(plan.buffers.back().name == "parts", parts > 1);
    ASSERT_TRUE(parse_plan(to_json(plan)) == plan);
  }
  EXPECT_GT(split, 200);
}

TEST(SplitK, OneRanksPlanIsThatRanksPart) {
  test::Random random(test::seed_from_environment() + 1);
  for (int i = 0; i < 200; ++i) {
    const auto c = deep_case(random);
    SCOPED_TRACE(test::describe(c));
    const Plan whole = make_plan(c.problem, c.strategy, c.knobs);
    const int rank = static_cast<int>(random.between(0, c.problem.ranks - 1));
    const Plan one = plan::make_rank_plan(c.problem, c.strategy, c.knobs, rank);
    const auto r = static_cast<std::size_t>(rank);
    ASSERT_TRUE(one.buffers == whole.buffers);
    ASSERT_TRUE(one.ranks[r] == whole.ranks[r]);
    for (std::size_t other = 0; other < whole.ranks.size(); ++other)
      ASSERT_EQ(one.ranks[other].signals, whole.ranks[other].signals);
  }
}

// Among several contributions, the own one stands where its rank does, and is the sum of the parts in their order.
TEST(SplitK, PartsStandWhereTheOwnProductDoes) {
  Knobs knobs;
  knobs.transport = Transport::store;
  knobs.tile_m = knobs.tile_n = 64;
  knobs.split_k = 3;
  const Problem problem{Operator::gemm_reduce_scatter, 256, 64, 4 * 512, 4, Type::bf16, true};
  const Plan plan = make_plan(problem, Strategy::fused, knobs);
  int sums = 0;
  for (std::size_t rank = 0; rank < 4; ++rank)
    for (const Task& task : plan.ranks[rank].queues[0].tasks) {
      const auto* tile = std::get_if<Tile>(&task.work);
      if (tile == nullptr || tile->adds.size() < 4) continue;
      ++sums;
      ASSERT_EQ(tile->adds.size(), 3u + 2u + 1u);  // peers, parts, bias
      EXPECT_EQ(tile->own, static_cast<int>(rank) + 2);
      EXPECT_EQ(tile->a.col + tile->a.cols, 512);
      for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(is_part(plan, tile->adds[i]), i >= rank && i < rank + 2);
        if (i == rank) {
          EXPECT_EQ(tile->adds[i + 1].row, tile->adds[i].row + 1);
        }
      }
    }
  EXPECT_EQ(sums, 4);
}

// A worker that waits for a part never waits for one that comes later in the queue.
TEST(SplitK, PartsStandBeforeTheTilesThatAddThem) {
  for (Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter}) {
    Knobs knobs;
    knobs.transport = Transport::store;
    knobs.tile_m = knobs.tile_n = 8;
    knobs.split_k = 2;
    const Plan plan = make_plan({op, 64, 512, 512, 2, Type::bf16}, Strategy::fused, knobs);
    for (const RankPlan& rank : plan.ranks) {
      std::map<int, std::size_t> posted;
      const auto& tasks = rank.queues[0].tasks;
      std::size_t apart = tasks.size();
      for (std::size_t t = 0; t < tasks.size(); ++t) {
        const auto* tile = std::get_if<Tile>(&tasks[t].work);
        if (tile == nullptr) continue;
        if (is_part(plan, tile->stores.front().to)) posted[tasks[t].posts.front().signal] = t;
        for (const Wait& wait : tasks[t].waits)
          if (wait.point == WaitPoint::epilogue && posted.contains(wait.signal))
            apart = std::min(apart, t - posted[wait.signal]);
      }
      EXPECT_FALSE(posted.empty());
      EXPECT_GE(apart, 100u);  // several waves' worth of other tiles in between
    }
  }
}

TEST(SplitK, IsOnePartWhereKIsShort) {
  Knobs knobs;
  knobs.split_k = 4;
  const auto parts = [&](std::int64_t k) {
    return stretches(make_plan({Operator::all_gather_gemm, 64, 64, k, 2, Type::bf16}, Strategy::fused, knobs))
        .begin()
        ->second.size();
  };
  EXPECT_EQ(parts(128), 1u);
  EXPECT_EQ(parts(129), 2u);
  EXPECT_EQ(parts(300), 3u);
  EXPECT_EQ(parts(4096), 4u);
}

TEST(SplitK, RefusesNumbersThatAreNone) {
  for (int parts : {0, -3}) {
    Knobs knobs;
    knobs.split_k = parts;
    try {
      make_plan({Operator::all_gather_gemm, 64, 64, 64, 2, Type::bf16}, Strategy::fused, knobs);
      ADD_FAILURE() << parts;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      EXPECT_NE(std::string(error.what()).find("knob split_k = " + std::to_string(parts) + ": it must be from 1"),
                std::string::npos)
          << error.what();
    }
  }
}

TEST(SplitK, BlocksShareTilesThatAreNotCut) {
  const auto refusal = [](int cluster_k, int split_k) -> std::string {
    try {
      make_plan({Operator::all_gather_gemm, 64, 64, 64, 2, Type::bf16}, Strategy::fused,
                {.cluster_k = cluster_k, .split_k = split_k});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(2, 1), "");
  for (int number : {0, 3, -1})
    EXPECT_NE(refusal(number, 1).find("knob cluster_k = " + std::to_string(number) + ": it must be 1 or 2"),
              std::string::npos);
  EXPECT_NE(refusal(2, 3).find("cluster_k = 2 and split_k = 3: a tile's K is cut in one of the two ways"),
            std::string::npos);
}

TEST(SplitK, FilesOfBeforeHadOnePart) {
  const std::string text = to_json(make_plan({Operator::all_gather_gemm, 8, 8, 8, 2, Type::fp32}, Strategy::fused, {}));
  for (const std::string knob : {"\"split_k\": 1, ", "\"cluster_k\": 1, "}) {
    const auto at = text.find(knob);
    ASSERT_NE(at, std::string::npos);
    const Knobs knobs = parse_plan(std::string(text).erase(at, knob.size())).knobs;
    EXPECT_EQ(knobs.split_k, 1);
    EXPECT_EQ(knobs.cluster_k, 1);
  }
}

// --------------------------------------------------------------------------------------------- broken on purpose

struct Broken {
  Plan plan;
  Task* first = nullptr;   // a block's first part
  Task* second = nullptr;  // its second
  Task* last = nullptr;
};

Broken whole(Operator op, Reducer reducer) {
  Knobs knobs;
  knobs.transport = Transport::store;
  knobs.reducer = reducer;
  knobs.tile_m = knobs.tile_n = 16;
  knobs.split_k = 3;
  knobs.cluster = 1;  // without pairs, which are wrong where tasks change
  Broken b{make_plan({op, 32, 32, 1536, 2, Type::bf16}, Strategy::fused, knobs)};
  for (Task& task : b.plan.ranks[1].queues[0].tasks) {
    auto* tile = std::get_if<Tile>(&task.work);
    if (tile == nullptr || tile->a.buffer != 0) continue;
    const auto same = [&](Task* other) {
      const auto& x = std::get<Tile>(other->work);
      return x.a.row == tile->a.row && x.b.col == tile->b.col;
    };
    if (b.first == nullptr)
      b.first = &task;
    else if (same(b.first))
      (b.second == nullptr ? b.second : b.last) = &task;
  }
  EXPECT_FALSE(check(b.plan).has_value()) << check(b.plan)->message;
  return b;
}

Region& part_added(Broken& b, std::size_t number) {
  for (Region& add : std::get<Tile>(b.last->work).adds)
    if (is_part(b.plan, add) && number-- == 0) return add;
  throw std::logic_error("no such part");
}

void expect_refused(Operator op, Reducer reducer, Fault fault, const std::string& text,
                    const std::function<void(Broken&)>& change) {
  Broken b = whole(op, reducer);
  change(b);
  const auto finding = check(b.plan);
  ASSERT_TRUE(finding.has_value()) << "passed; expected " << text;
  EXPECT_EQ(name_of(finding->fault), name_of(fault)) << finding->message;
  EXPECT_NE(finding->message.find(text), std::string::npos) << finding->message;
}

TEST(SplitK, CheckerRefusesWhatIsBroken) {
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (Reducer reducer : {Reducer::tile, Reducer::tail}) {
      SCOPED_TRACE(std::string(name_of(op)) + " " + std::string(name_of(reducer)));
      const auto refused = [&](Fault fault, const std::string& text, const std::function<void(Broken&)>& change) {
        expect_refused(op, reducer, fault, text, change);
      };
      refused(Fault::race, "may read", [](Broken& b) {
        std::erase_if(b.last->waits, [&](const Wait& w) { return w.signal == b.first->posts.front().signal; });
      });
      refused(Fault::race, "may read", [](Broken& b) {
        for (Wait& w : b.last->waits)
          if (w.signal == b.first->posts.front().signal) w.count = 1;
      });
      refused(Fault::deadlock, "but an epoch has only 1", [](Broken& b) { b.second->posts.clear(); });
      refused(Fault::deadlock, "never sees more than", [](Broken& b) { std::swap(*b.first, *b.last); });
      refused(Fault::coverage, "with the sum over k", [](Broken& b) {
        auto& tile = std::get<Tile>(b.last->work);
        std::erase(tile.adds, Region(part_added(b, 1)));
        --tile.own;
      });
      refused(Fault::coverage, "counted twice", [](Broken& b) { part_added(b, 1) = part_added(b, 0); });
      refused(Fault::coverage,
              "multiplies columns of A from k =", [](Broken& b) { std::get<Tile>(b.second->work).a.col += 128; });
      // Both operands from a stretch that another part sums, too.
      refused(Fault::coverage, "counted twice", [](Broken& b) {
        auto& tile = std::get<Tile>(b.second->work);
        tile.a.col -= 128;
        tile.b.row -= 128;
      });
      refused(Fault::coverage, "writes too", [](Broken& b) {
        std::get<Tile>(b.second->work).stores.front() = std::get<Tile>(b.first->work).stores.front();
      });
    }
}

}  // namespace
}  // namespace imbrex
