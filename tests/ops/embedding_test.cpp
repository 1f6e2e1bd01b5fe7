// Embeddings over ranks on the CPU: within the bounds of float64, the same bits whatever the strategy and in every run,
// and hostile numbers refused by every rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <thread>

#include "embedding/lookup.hpp"
#include "embedding/random_step.hpp"
#include "embedding/sharded.hpp"
#include "imbrex/c.h"
#include "imbrex/error.hpp"
#include "imbrex/integers.hpp"
#include "imbrex/world.hpp"
#include "support/operators.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using embedding::Bounded;
using test::error_of, test::RandomBags, test::Sharded;

constexpr WorldOptions roomy{.heap_bytes = 1 << 27, .wait_limit = 60};
constexpr Strategy strategies[] = {Strategy::fused, Strategy::sequential, Strategy::decomposed};

OperatorOptions options_of(std::mt19937_64& random, std::optional<Strategy> strategy) {
  OperatorOptions options = test::on_cpu();
  options.strategy = strategy;
  options.cpu.workers = 1 + static_cast<int>(random() % 2);
  if (strategy) {
    options.knobs.emplace();
    options.knobs->tile_m = 1 + static_cast<std::int64_t>(random() % 5);
    options.knobs->chunks = 1 + static_cast<int>(random() % 3);
  }
  return options;
}

std::int64_t faults(const RandomBags& c) {
  std::int64_t count = 0;
  for (std::int32_t t = 0; t < c.tables().count; ++t)
    for (std::int64_t b = 0; b < c.bags.batch; ++b) {
      const std::vector<Bounded> wanted = embedding::reference(c.tables(), c.bags, c.out, t, b);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const std::int64_t column = c.table[static_cast<std::size_t>(t)].column + static_cast<std::int64_t>(i);
        count += !(std::abs(double{test::output_at(c, b, column)} - wanted[i].value) <= wanted[i].bound);
      }
    }
  return count;
}

TEST(EmbeddingAllToAll, RandomProblemsAreWithinTheirBounds) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < 500; ++i) {
    std::mt19937_64 random(seed + i);
    const bool misfits = i % 4 == 0, everywhere = i % 3 != 0;
    RandomBags bags = test::random_bags(random, {.rows = 60, .part_rows = 5, .bag = 12, .misfits = misfits});
    Sharded c = test::deal(random, std::move(bags), everywhere);
    c.shape.misfits = misfits ? Misfits::ignored : Misfits::refused;
    bool all_hold = true;
    for (const auto& rank : c.ranks) all_hold = all_hold && !rank.table.empty();
    const std::optional<Strategy> strategy = i % 7 == 0 ? std::optional<Strategy>()
                                             : all_hold ? strategies[i % 3]
                                                        : Strategy::fused;
    SCOPED_TRACE(fmt::format("case {}: {}, strategy {}", i, c.whole.text(), strategy ? name_of(*strategy) : "none"));
    const OperatorOptions options = options_of(random, strategy);
    std::int64_t wanted_ignored = 0;
    for (const auto& rank : c.ranks)
      if (!rank.table.empty())
        wanted_ignored += embedding::check_bags(rank.tables(c.shape.rows), rank.bags, Misfits::ignored);
    std::vector<std::vector<std::byte>> first;
    first = results_of(c, roomy, [&](World& world, std::vector<std::byte>& out) {
      EmbeddingAllToAll op(world, c.shape, options);
      std::vector<std::byte> again = out;
      op.run(c.operands(op, world.rank(), out.data(), false));
      if (op.report().ignored != wanted_ignored) throw Error(ErrorCode::unsound, "another number is ignored");
      op.run(c.operands(op, world.rank(), again.data(), false));
      if (again != out) throw Error(ErrorCode::unsound, "two runs differ");
      if (op.report().ignored != wanted_ignored || op.report().ignored != 0)
        throw Error(ErrorCode::unsound, "reports do not begin anew");
    });
    look_up(c.whole.tables(), c.whole.bags, c.whole.output(), whole(c.whole.tables(), c.whole.bags));
    ASSERT_EQ(first, c.whole.part);
    ASSERT_EQ(faults(c.whole), 0);
  }
}

TEST(EmbeddingAllToAll, CallsHaveAnyBatchUpToTheLargest) {
  std::mt19937_64 random(11);
  RandomBags small;
  do small = test::random_bags(random, {.part_rows = 6});
  while (small.ranks != 3);
  const Sharded c = test::deal(random, std::move(small), true);
  look_up(c.whole.tables(), c.whole.bags, c.whole.output(), whole(c.whole.tables(), c.whole.bags));
  for (const Strategy strategy : strategies) {
    EmbeddingShape shape = c.shape;
    shape.batch = 24 * 3;
    OperatorOptions options = options_of(random, strategy);
    const auto results = results_of(c, roomy, [&](World& world, std::vector<std::byte>& out) {
      EmbeddingAllToAll small_one(world, c.shape, options), op(world, shape, options);
      auto operands = c.operands(small_one, world.rank(), out.data(), false);
      for (int i = 0; i < 3; ++i) op.run(operands);
    });
    EXPECT_EQ(results, c.whole.part);
  }
}

// Gradients of all ranks, in rows as wide as the output.
embedding::Output gradients_of(const Sharded& c) { return c.whole.output(); }

TEST(EmbeddingAllToAll, TablesAfterFiveStepsAreWithinTheirBounds) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < 60; ++i) {
    std::mt19937_64 random(seed + i);
    test::RandomStep step = test::random_step(random, {.rows = 40, .part_rows = 4, .bag = 8, .misfits = i % 4 == 0});
    Sharded c = test::deal(random, std::move(step.bags), i % 2 == 0);
    c.shape.optimizer = step.step.optimizer, c.shape.epsilon = step.step.epsilon;
    c.shape.misfits = i % 4 == 0 ? Misfits::ignored : Misfits::refused;
    SCOPED_TRACE(fmt::format("case {}: {}, {}", i, c.whole.text(), name_of(step.step.optimizer)));
    constexpr int steps = 5;
    std::vector<std::vector<std::vector<std::byte>>> gradients;  // by step and rank
    for (int s = 0; s < steps; ++s) {
      test::draw_gradients(random, c.whole);
      gradients.push_back(c.whole.part);
    }
    const auto run = [&](std::vector<test::RankBags>& ranks) {
      results_of(c, roomy, [&](World& world, std::vector<std::byte>&) {
        const auto r = static_cast<std::size_t>(world.rank());
        EmbeddingAllToAll op(world, c.shape, test::on_cpu());
        Sharded own = c;
        own.ranks = ranks;
        for (std::size_t t = 0; t < own.ranks[r].table.size(); ++t)
          own.ranks[r].table[t].rows = own.ranks[r].rows[t].data();
        for (int s = 0; s < steps; ++s)
          op.update(own.operands(op, world.rank(), gradients[static_cast<std::size_t>(s)][r].data(), true),
                    step.step.rate);
        ranks[r].rows = own.ranks[r].rows, ranks[r].states = own.ranks[r].states;
      });
    };
    auto first = c.ranks, second = c.ranks;
    run(first);
    run(second);
    for (std::size_t r = 0; r < c.ranks.size(); ++r) {
      ASSERT_EQ(first[r].rows, second[r].rows);
      ASSERT_EQ(first[r].states, second[r].states);
      test::RankBags& rank = c.ranks[r];
      if (rank.table.empty()) continue;
      std::vector<float*> states;
      for (auto& state : rank.states) states.push_back(state.data());
      const embedding::Step own{step.step.optimizer, step.step.rate, step.step.epsilon, states.data()};
      const embedding::Tables tables = rank.tables(c.shape.rows);
      std::vector<embedding::BoundedTable> bounded;
      for (std::int32_t t = 0; t < tables.count; ++t) bounded.push_back(bounded_table(tables, own, t));
      for (const auto& parts : gradients) {
        c.whole.part = parts;
        for (std::size_t d = 0; d < parts.size(); ++d) c.whole.parts[d] = c.whole.part[d].data();
        for (std::int32_t t = 0; t < tables.count; ++t)
          reference_step(tables, rank.bags, gradients_of(c), own, t, bounded[static_cast<std::size_t>(t)]);
        embedding::update(tables, rank.bags, gradients_of(c), own);
      }
      ASSERT_EQ(first[r].rows, rank.rows);  // as one rank would change them
      for (std::size_t t = 0; t < bounded.size(); ++t) {
        const embedding::BoundedTable now = bounded_table(tables, own, static_cast<std::int32_t>(t));
        for (std::size_t k = 0; k < now.values.size(); ++k)
          ASSERT_LE(std::abs(now.values[k] - bounded[t].values[k]), bounded[t].bounds[k]);
      }
    }
  }
}

TEST(EmbeddingAllToAll, HostileNumbersAreRefusedByEveryRank) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < 60; ++i) {
    std::mt19937_64 random(seed + i);
    RandomBags bags;
    do bags = test::random_bags(random, {.rows = 50, .part_rows = 4, .bag = 8});
    while (bags.bags.count == 0);
    Sharded c = test::deal(random, std::move(bags), false);
    c.shape.optimizer = c.shape.rows == TableRows::int8 ? std::nullopt : std::optional(Optimizer::sgd);
    std::size_t bad = 0;
    do bad = random() % c.ranks.size();
    while (c.ranks[bad].bags.count == 0);
    Sharded broken = c;
    test::RankBags& rank = broken.ranks[bad];
    const std::int64_t wide[] = {-1, std::numeric_limits<std::int64_t>::min(), std::int64_t{1} << 33, 0x7fffffff};
    std::int64_t value = wide[random() % 4];
    const bool offsets = i % 2 == 0;
    if (c.shape.index_type == IndexType::int32) value = static_cast<std::int32_t>(value);
    if (offsets && value == 0) value = -1;
    if (!offsets && value >= 0 && value < 60) value = 60;
    auto& numbers = offsets ? rank.offsets : rank.indices;
    const std::int64_t count = std::ssize(numbers) / embedding::size_of(c.shape.index_type);
    const auto place = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
    test::put_number(numbers, c.shape.index_type, place, value);
    SCOPED_TRACE(fmt::format("case {}: {} {} = {} on rank {}", i, offsets ? "offset" : "index", place, value, bad));
    const std::string named = fmt::format("{}", value);
    look_up(c.whole.tables(), c.whole.bags, c.whole.output(), whole(c.whole.tables(), c.whole.bags));
    const auto results = results_of(c, roomy, [&](World& world, std::vector<std::byte>& out) {
      EmbeddingAllToAll op(world, c.shape, test::on_cpu());
      const auto refuses = [&](bool update, std::vector<std::byte>& matrix) {
        const std::string refusal = error_of([&] {
          const auto operands = broken.operands(op, world.rank(), matrix.data(), update);
          update ? op.update(operands, 0.5f) : op.run(operands);
        });
        if (refusal.find(named) == std::string::npos || refusal.find("table ") == std::string::npos)
          throw Error(ErrorCode::unsound, fmt::format("refused by: '{}'", refusal));
        if (std::cmp_not_equal(world.rank(), bad) && refusal.find(fmt::format("rank {}", bad)) == std::string::npos)
          throw Error(ErrorCode::unsound, fmt::format("no rank is named: '{}'", refusal));
      };
      std::vector<std::byte> scratch = out;
      refuses(false, scratch);
      if (scratch != out) throw Error(ErrorCode::unsound, "a refused call wrote");
      if (c.shape.optimizer) refuses(true, scratch);
      op.run(c.operands(op, world.rank(), out.data(), false));  // the operator goes on
    });
    ASSERT_EQ(results, c.whole.part);
  }
}

// The same operator by imbrex/c.h.
class CEmbedding {
 public:
  CEmbedding(const Sharded& c, imbrex_world* world, int rank) : c_(c), own_(c.ranks[static_cast<std::size_t>(rank)]) {
    std::vector<imbrex_table> tables;
    for (const EmbeddingTable& t : c.shape.tables) tables.push_back({t.rows, t.dim, 0, t.hotness});
    std::vector<imbrex_table_shard> shards;
    for (const EmbeddingShard& s : c.shape.shards) shards.push_back({s.table, s.rank, s.begin, s.end});
    imbrex_embedding_shape shape{};
    shape.size = sizeof shape;
    shape.tables = tables.data(), shape.table_count = tables.size();
    shape.shards = shards.data(), shape.shard_count = shards.size();
    shape.batch = c.shape.batch;
    shape.rows = static_cast<imbrex_table_rows>(c.shape.rows);
    shape.pooling = static_cast<imbrex_pooling>(c.shape.pooling);
    shape.index_type = c.shape.index_type == IndexType::int32 ? IMBREX_INT32 : IMBREX_INT64;
    shape.out = static_cast<imbrex_type>(c.shape.out);
    shape.weighted = c.shape.weighted ? 1 : 0;
    if (c.shape.optimizer) shape.optimizer = static_cast<imbrex_optimizer>(*c.shape.optimizer) + 1;
    imbrex_operator_options options{};
    options.size = sizeof options;
    options.device = IMBREX_CPU;
    expect(imbrex_embedding_make(world, &shape, &options, &made_));
  }
  ~CEmbedding() { expect(imbrex_embedding_destroy(made_)); }
  CEmbedding(const CEmbedding&) = delete;
  CEmbedding& operator=(const CEmbedding&) = delete;

  void run(void* out) {
    const auto operands = list(0, out);
    expect(imbrex_embedding_run(made_, operands.data(), operands.size(), nullptr));
  }
  void update(void* gradients, float rate) {
    const auto operands = list(1, gradients);
    expect(imbrex_embedding_update(made_, operands.data(), operands.size(), rate, nullptr));
    std::int64_t ignored = -1;
    expect(imbrex_embedding_report(made_, &ignored));
    EXPECT_EQ(ignored, 0);
  }

 private:
  static void expect(imbrex_status status) { EXPECT_EQ(status, IMBREX_OK) << imbrex_error_message(); }

  std::vector<imbrex_operand> list(std::int32_t update, void* matrix) {
    std::vector<imbrex_operand> operands;
    for (std::int32_t i = 0; i < imbrex_embedding_operands(made_, update); ++i) {
      imbrex_operand_info info{};
      info.size = sizeof info;
      expect(imbrex_embedding_operand(made_, update, i, &info));
      const std::string_view name = info.name;
      imbrex_operand operand{info.name, info.view};
      if (name.starts_with("rows")) {
        const auto at = static_cast<std::size_t>(std::stoi(std::string(name.substr(4))));
        operand.view.data = const_cast<std::byte*>(own_.rows[at].data());
        operand.view.strides[0] = own_.table[at].pitch / embedding::size_of(c_.shape.rows);
      } else if (name.starts_with("states")) {
        operand.view.data =
            const_cast<float*>(own_.states[static_cast<std::size_t>(std::stoi(std::string(name.substr(6))))].data());
      } else if (name == "offsets") {
        operand.view.data = const_cast<std::byte*>(own_.offsets.data());
      } else if (name == "indices") {
        operand.view.data = const_cast<std::byte*>(own_.indices.data()), operand.view.extents[0] = own_.bags.count;
      } else if (name == "weights") {
        operand.view.data = const_cast<float*>(own_.weights.data()), operand.view.extents[0] = own_.bags.count;
      } else {
        operand.view.data = matrix;
      }
      operands.push_back(operand);
    }
    return operands;
  }

  const Sharded& c_;
  const test::RankBags& own_;
  imbrex_embedding* made_ = nullptr;
};

TEST(EmbeddingAllToAll, CGivesTheSame) {
  for (std::uint64_t i = 0; i < 20; ++i) {
    std::mt19937_64 random(i);
    test::RandomStep step = test::random_step(random, {.tables = 20, .rows = 40, .part_rows = 4, .bag = 8});
    Sharded c = test::deal(random, std::move(step.bags), false);
    c.shape.optimizer = step.step.optimizer;
    const auto gradients = c.whole.part;
    Sharded in_c = c, in_cpp = c;
    for (Sharded* s : {&in_c, &in_cpp})
      for (auto& rank : s->ranks)
        for (std::size_t t = 0; t < rank.table.size(); ++t) rank.table[t].rows = rank.rows[t].data();
    imbrex_unique_id id;
    ASSERT_EQ(imbrex_make_unique_id(&id), IMBREX_OK);
    std::vector<std::vector<std::byte>> outs(c.ranks.size(), std::vector<std::byte>(c.part_bytes()));
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < c.whole.ranks; ++rank)
      threads.emplace_back([&, rank] {
        const auto r = static_cast<std::size_t>(rank);
        imbrex_world_options options{};
        options.size = sizeof options, options.heap_bytes = 1 << 27;
        imbrex_world* world = nullptr;
        ASSERT_EQ(imbrex_world_connect(&id, rank, c.whole.ranks, &options, &world), IMBREX_OK);
        {
          CEmbedding op(in_c, world, rank);
          op.run(outs[r].data());
          std::vector<std::byte> own = gradients[r];
          op.update(own.data(), step.step.rate);
        }
        EXPECT_EQ(imbrex_world_destroy(world), IMBREX_OK);
      });
    threads.clear();
    const auto results = results_of(c, roomy, [&](World& world, std::vector<std::byte>& out) {
      EmbeddingAllToAll op(world, c.shape, test::on_cpu());
      op.run(in_cpp.operands(op, world.rank(), out.data(), false));
      std::vector<std::byte> own = gradients[static_cast<std::size_t>(world.rank())];
      op.update(in_cpp.operands(op, world.rank(), own.data(), true), step.step.rate);
    });
    EXPECT_EQ(outs, results);
    for (std::size_t r = 0; r < c.ranks.size(); ++r) {
      EXPECT_EQ(in_c.ranks[r].rows, in_cpp.ranks[r].rows);
      EXPECT_TRUE(c.ranks[r].table.empty() || c.whole.bags.count == 0 || in_c.ranks[r].rows != c.ranks[r].rows ||
                  c.ranks[r].bags.count == 0);
    }
  }
}

TEST(EmbeddingAllToAll, CPlacesTables) {
  const imbrex_table tables[] = {{1000, 64, 0, 10}, {2000, 64, 0, 0}, {10, 64, 0, 1}};
  imbrex_embedding_shape shape{};
  shape.size = sizeof shape;
  shape.tables = tables, shape.table_count = 3, shape.out = IMBREX_FP32;
  std::uint64_t count = 0;
  double balance = 0;
  ASSERT_EQ(imbrex_place_tables(&shape, 2, 0, nullptr, &count, &balance), IMBREX_OK) << imbrex_error_message();
  const EmbeddingTable same[] = {{1000, 64, 10}, {2000, 64, 1}, {10, 64, 1}};
  const Placement placed = place_tables(same, {.ranks = 2});
  ASSERT_EQ(count, placed.shards.size());
  EXPECT_EQ(balance, placed.balance);
  std::vector<imbrex_table_shard> shards(count);
  ASSERT_EQ(imbrex_place_tables(&shape, 2, 0, shards.data(), &count, nullptr), IMBREX_OK);
  for (std::size_t i = 0; i < count; ++i)
    EXPECT_EQ((EmbeddingShard{shards[i].table, shards[i].rank, shards[i].begin, shards[i].end}), placed.shards[i]);
  EXPECT_EQ(imbrex_place_tables(&shape, 0, 0, nullptr, &count, nullptr), IMBREX_INVALID_INPUT);
}

TEST(EmbeddingAllToAll, NamesWhatIsWrongWithShapesAndOperands) {
  const auto made = [](const EmbeddingShape& shape, const OperatorOptions& options = test::on_cpu()) {
    std::string first;
    std::mutex mutex;
    run_threads(2, roomy, [&](World& world) {
      const std::string text = error_of([&] { EmbeddingAllToAll(world, shape, options); });
      const std::lock_guard guard(mutex);
      if (first.empty() || first.size() > text.size()) first = text;
      return text.empty() ? 1 : 0;
    });
    return first;
  };
  const auto expect = [](const std::string& refusal, const std::string& text) {
    EXPECT_NE(refusal.find(text), std::string::npos) << refusal;
  };
  const EmbeddingShape good{.tables = {{10, 8, 1}, {20, 4, 2}}, .shards = {{0, 0, 0, 8}, {1, 1, 0, 4}}, .batch = 4};
  EmbeddingShape bad = good;
  bad.tables.clear(), bad.shards.clear();
  expect(made(bad), "0 tables on 2 ranks");
  bad = good, bad.shards[0].table = 2;
  expect(made(bad), "shard 0: table 2; there are 2");
  bad = good, bad.shards[0].end = 12;
  expect(made(bad), "shard 0: columns 0 to 12 of table 0, which has 8");
  bad = good, bad.shards[0].end = 4;
  expect(made(bad), "side by side");
  bad = good, bad.shards.pop_back();
  expect(made(bad), "shards have 8 columns, and the tables 12");
  bad = good, bad.shards[1].rank = 2;
  expect(made(bad), "shard 1: owner 2; it must be from 0 to 1");
  bad = good, bad.batch = 3;
  expect(made(bad), "batch = 3 does not divide by 2 ranks");
  bad = good, bad.rows = TableRows::int8, bad.optimizer = Optimizer::sgd;
  expect(made(bad), "optimizer sgd with rows of int8");
  bad = good, bad.shards[1].rank = 0;
  OperatorOptions sequential = test::on_cpu();
  sequential.strategy = Strategy::sequential;
  expect(made(bad, sequential), "rank 1 has no table");
  sequential.strategy = Strategy::signaled;
  expect(made(good, sequential), "strategy signaled");

  // One rank's operands, which both ranks refuse.
  std::vector<float> rows(80), out(24), more(400);
  std::vector<std::int64_t> indices(4), offsets{0, 1, 2, 3, 4};
  EXPECT_EQ(
      run_threads(
          2, roomy,
          [&](World& world) {
            EmbeddingAllToAll op(world, good, test::on_cpu());
            const std::vector<Operand> fine{op.operand("rows0", more.data()), op.operand("indices", indices.data(), 4),
                                            op.operand("offsets", offsets.data()),
                                            op.operand("out", more.data() + 100)};
            const auto refused = [&](const std::string& text,
                                     const std::function<void(std::vector<Operand>&)>& change) {
              std::vector<Operand> operands = fine;
              if (world.rank() == 0) change(operands);
              const std::string refusal = error_of([&] { op.run(operands); });
              EXPECT_NE(refusal.find(text), std::string::npos) << "rank " << world.rank() << ": " << refusal;
            };
            refused("operand rows0 is missing", [](auto& o) { o.erase(o.begin()); });
            refused(
                "operand rows1: this rank's lookup has no operand of that name; its operands are rows0 to rows0, "
                "indices, "
                "offsets, out",
                [](auto& o) { o[0].name = "rows1"; });
            refused("operand indices is given twice", [](auto& o) { o.push_back(o[1]); });
            refused("operand indices is of type int32; it must be int64", [](auto& o) { o[1].view.type = type_int32; });
            refused("operand rows0: its address is null", [](auto& o) { o[0].view.data = nullptr; });
            refused("operand rows0 is 9 x 8; it must be 10 x 8", [](auto& o) { o[0].view.extents[0] = 9; });
            refused("its rows are 9 elements apart", [](auto& o) { o[0].view.strides[0] = 9; });
            refused("operand offsets has 4 numbers; a batch of 4 takes 5", [](auto& o) { o[2].view.extents[0] = 4; });
            refused("operand out has 3 rows; this operator takes from 1 to 2",
                    [](auto& o) { o[3].view.extents[0] = 3; });
            refused("it must be aligned to 16 bytes", [&](auto& o) { o[0].view.data = more.data() + 1; });
            refused("operand rows0 has strides of 8, 2", [](auto& o) { o[0].view.strides[1] = 2; });
            const std::string refusal = error_of([&] { op.update(fine, 1); });
            EXPECT_NE(refusal.find("made without an optimizer"), std::string::npos) << refusal;
            return 0;
          }),
      0);
}

}  // namespace
}  // namespace imbrex
