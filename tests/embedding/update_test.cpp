// Updates on the CPU against float64.
#include "embedding/update.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include <fmt/format.h>

#include "embedding/random_step.hpp"
#include "embedding/rows.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex::embedding {
namespace {

using test::RandomStep;

// Elements and states that are outside their bounds.
std::int64_t faults(const RandomStep& s, const std::vector<BoundedTable>& wanted) {
  std::int64_t count = 0;
  float row[most_dim];
  for (std::size_t t = 0; t < wanted.size(); ++t) {
    const Table& table = s.bags.table[t];
    for (std::int64_t r = 0; r < table.count; ++r) {
      read_row(table, s.bags.type, r, row);
      for (std::int32_t i = 0; i < table.dim; ++i) {
        const auto at = static_cast<std::size_t>(r * table.dim + i);
        if (!(std::abs(double{row[i]} - wanted[t].values[at]) <= wanted[t].bounds[at])) ++count;
      }
      const auto at = static_cast<std::size_t>(r);
      if (s.step.optimizer == Optimizer::row_wise_adagrad &&
          !(std::abs(double{s.states[t][at]} - wanted[t].states[at]) <= wanted[t].state_bounds[at]))
        ++count;
    }
  }
  return count;
}

std::vector<BoundedTable> bounded_tables(const RandomStep& s) {
  std::vector<BoundedTable> bounded;
  for (std::int32_t t = 0; t < s.bags.tables().count; ++t) bounded.push_back(bounded_table(s.bags.tables(), s.step, t));
  return bounded;
}

TEST(Update, FiveStepsAreWithinTheirBounds) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < 100; ++i) {
    std::mt19937_64 random(seed + i);
    RandomStep s = test::random_step(random, {.rows = 60, .part_rows = 5, .bag = 24, .misfits = i % 3 == 0});
    SCOPED_TRACE(fmt::format("case {}: {}, {}", i, s.bags.text(), name_of(s.step.optimizer)));
    auto wanted = bounded_tables(s);
    const auto rows = s.bags.rows;
    for (int k = 0; k < 5; ++k) {
      for (std::int32_t t = 0; t < s.bags.tables().count; ++t)
        reference_step(s.bags.tables(), s.bags.bags, s.bags.output(), s.step, t, wanted[static_cast<std::size_t>(t)]);
      ASSERT_EQ(update(s.bags.tables(), s.bags.bags, s.bags.output(), s.step), s.bags.misfits);
      ASSERT_EQ(faults(s, wanted), 0) << "step " << k;
      test::draw_gradients(random, s.bags);
    }
    // One step less is outside.
    if (s.bags.bags.count > s.bags.misfits && s.bags.bags.weights == nullptr) {
      for (std::size_t t = 0; t < rows.size(); ++t) std::copy(rows[t].begin(), rows[t].end(), s.bags.rows[t].begin());
      ASSERT_GT(faults(s, wanted), 0);
    }
  }
}

TEST(Update, GivesExactRows) {
  // 300 uses of row 1, which lie in several tiles, and one of row 2; row 0 stays.
  std::vector<float> rows{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}, states{1, 1, 1}, gradient(301 * 4, 0.5f);
  gradient[300 * 4] = 1, gradient[300 * 4 + 1] = -1, gradient[300 * 4 + 2] = 1, gradient[300 * 4 + 3] = 1;
  const Table table{rows.data(), 3, 16, 0, 4, 0};
  std::vector<std::int32_t> indices(301, 1), offsets(302);
  indices[300] = 2;
  for (int i = 0; i <= 301; ++i) offsets[static_cast<std::size_t>(i)] = i;
  void* part = gradient.data();
  float* state = states.data();
  const Bags bags{indices.data(), offsets.data(), nullptr, 301, 301, IndexType::int32, Pooling::sum};
  Step step{Optimizer::sgd, 0.25f, 0, nullptr};
  EXPECT_EQ(update({&table, 1, TableRows::fp32}, bags, {&part, 1, Type::fp32, 4}, step), 0);
  EXPECT_EQ(rows, (std::vector<float>{1, 1, 1, 1, 2 - 37.5f, 2 - 37.5f, 2 - 37.5f, 2 - 37.5f, 2.75, 3.25, 2.75, 2.75}));
  step = {Optimizer::row_wise_adagrad, 3, 0.5f, &state};
  states[2] = 3;  // + 1: the square root is 2
  rows[8] = 3;
  update({&table, 1, TableRows::fp32}, bags, {&part, 1, Type::fp32, 4}, step);
  EXPECT_EQ(states, (std::vector<float>{1, 22501, 4}));
  EXPECT_EQ(rows[8], 3 - 3 / 2.5f);
}

TEST(Update, RefusesWhatItCannotDo) {
  float rows[4] = {};
  const Table table{rows, 1, 16, 4, 4, 0}, many[2] = {{rows, most_rows, 16, 0, 4, 0}, {rows, most_rows, 16, 0, 4, 0}};
  const auto refused = [](const Tables& tables, const Step& step) -> std::string {
    try {
      check_step(tables, step);
    } catch (const Error& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_EQ(refused({&table, 1, TableRows::fp32}, {Optimizer::sgd, 1, 0, nullptr}), "no error");
  EXPECT_EQ(refused({&table, 1, TableRows::int8}, {Optimizer::sgd, 1, 0, nullptr}),
            "rows of int8 cannot be updated: fp32, fp16 and bf16 can");
  EXPECT_EQ(refused({many, 2, TableRows::fp32}, {Optimizer::sgd, 1, 0, nullptr}), "no error");
  EXPECT_EQ(refused({&table, 1, TableRows::fp32}, {Optimizer::row_wise_adagrad, 1, 0, nullptr}),
            "table 0: row_wise_adagrad needs its states");
  EXPECT_EQ(refused({&table, 1, TableRows::fp32}, {Optimizer::sgd, INFINITY, 0, nullptr}),
            "rate = inf, epsilon = 0: they must be finite, and epsilon not negative");
}

}  // namespace
}  // namespace imbrex::embedding
