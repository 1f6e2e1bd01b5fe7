// Operators on random problems, as callers hold their data: on 1 to 8 ranks, of which a part may be a world of its own,
// with both layouts of B, rows that lie apart, operands of three dimensions, lists of 1 to 3 B, the gathered A, and M
// below the largest. Against float64, and exactly where whole numbers allow it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "plan/problem.hpp"
#include "support/groups.hpp"
#include "support/operators.hpp"
#include "support/problem_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::Random;

constexpr int problems = 500;

struct Case {
  Problem problem;
  OperatorOptions options = test::on_cpu();
  int groups = 1;                  ///< worlds of the problem's ranks, side by side in one of all of them
  std::vector<std::int64_t> rows;  ///< M of the calls
  bool any_m = false, exact = false;
  std::int64_t parts = 1;  ///< of the rows of what has three dimensions
};

Case random_case(Random& random) {
  Case c;
  c.groups = random.chance(0.25) ? static_cast<int>(random.between(2, 3)) : 1;
  Problem& p = c.problem;
  p = test::random_problem(random, {.max_ranks = 8 / c.groups, .max_size = 60, .bias = true, .e4m3 = true});
  if (random.chance(0.3)) p.op = Operator::all_gather_gemm, p.n *= p.ranks, p.m *= p.ranks;
  if (p.op == Operator::all_gather_gemm) test::add_further(random, p, 60);
  c.exact = p.type == Type::fp32 && random.chance(0.8);
  if (random.chance(0.5)) test::add_pitches(random, p);
  if (random.chance(0.9)) {
    const bool one = plan::has_one_output(p);
    c.options.strategy =
        one ? random.one_of({Strategy::sequential, Strategy::decomposed, Strategy::fused, Strategy::signaled})
            : random.one_of({Strategy::sequential, Strategy::decomposed, Strategy::fused});
    c.options.knobs = test::random_knobs(random, p, *c.options.strategy);
    c.options.knobs->groups = {};
  }
  c.any_m = random.chance(0.6);
  const std::int64_t unit = plan::splits_m(p.op) ? p.ranks : 1;
  c.rows = {p.m};
  for (int i = 0; c.any_m && i < 2; ++i) c.rows.insert(c.rows.begin() + i, unit * random.between(1, p.m / unit));
  c.parts = random.chance(0.5) ? random.between(2, 4) : 1;
  return c;
}

std::string text_of(const Case& c) {
  test::RandomCase plain{c.problem, c.options.strategy.value_or(Strategy::fused), c.options.knobs.value_or(Knobs{})};
  return fmt::format("{}{} more N {} {}{}{}, {} groups, rows in {} parts", test::describe(plain),
                     c.options.strategy ? "" : " (strategy left open)", c.problem.more_n[0], c.problem.more_n[1],
                     c.problem.gathered_a ? ", gathered A" : "", c.any_m ? ", any M" : "", c.groups, c.parts);
}

// The operands of groups differ.
int run_case(World& all, const Case& c) {
  const auto group =
      c.groups > 1 ? test::group_of(all, c.problem.ranks, {.heap_bytes = 1 << 24, .wait_limit = 60}) : nullptr;
  World& world = group ? *group : all;
  GemmShape shape = test::shape_of(c.problem);
  shape.any_m = c.any_m;
  const auto op = test::make_operator(world, c.problem.op, shape, c.options);
  for (const std::int64_t m : c.rows) {
    Problem problem = c.problem;
    problem.m = m;
    const auto seed = static_cast<std::uint64_t>(m + 1000 * (all.rank() / world.size()));
    const std::unique_ptr<jobs::OperandSource> values =
        c.exact ? std::make_unique<test::WholeOperands>(problem, seed) : test::seeded_operands(problem, seed);
    test::ProblemMemory memory(problem, *values, world.rank());
    const auto operands =
        memory.operands([&](std::int64_t rows) { return rows % c.parts == 0 ? c.parts : std::int64_t{1}; });
    op->run(operands);
    const Plan plan = choose_plan(problem, nominal_host_machine(), c.options);
    if (const std::string wrong = memory.judge(plan, c.exact); !wrong.empty())
      throw Error(ErrorCode::unsound, fmt::format("M = {}: {}", m, wrong));
  }
  return 0;
}

TEST(RandomOperators, AreRightHoweverTheirDataLie) {
  Random random(test::seed_from_environment());
  int exact = 0, groups = 0, lists = 0, gathered = 0, apart = 0, less = 0, split = 0, by_columns = 0, ranks[9] = {};
  for (int i = 0; i < problems; ++i) {
    const Case c = random_case(random);
    SCOPED_TRACE(fmt::format("case {}: {}", i, text_of(c)));
    ASSERT_EQ(run_threads(c.groups * c.problem.ranks, {.heap_bytes = 1 << 24, .wait_limit = 60},
                          [&](World& world) { return run_case(world, c); }),
              0);
    ++ranks[c.problem.ranks];
    exact += c.exact, groups += c.groups > 1, lists += c.problem.more_n[0] > 0, gathered += c.problem.gathered_a;
    apart += test::has_gaps(c.problem), less += c.rows.front()<c.problem.m, split += c.parts> 1;
    by_columns += c.problem.b_layout == Layout::column_major;
  }
  for (const int seen : {exact, groups, lists, gathered, apart, less, split, by_columns})
    EXPECT_GT(seen, problems / 12);
  for (int r = 1; r <= 8; ++r) EXPECT_GT(ranks[r], 5) << r << " ranks";
}

}  // namespace
}  // namespace imbrex
