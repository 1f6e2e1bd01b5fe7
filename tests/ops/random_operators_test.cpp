// Operators on random problems, as callers hold their data: on 1 to 8 ranks, of which a part may be a world of its own,
// with both layouts of B, rows that lie apart, operands of three dimensions, lists of 1 to 3 B, the gathered A, and M
// below the largest. Against float64, and exactly where integers allow it.
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
#include "support/random_operator.hpp"

namespace imbrex {
namespace {

using test::Random, test::RandomOperator;

constexpr int problems = 500;

RandomOperator random_case(Random& random) {
  RandomOperator c;
  c.options = test::on_cpu();
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
  test::draw_calls(random, c);
  return c;
}

int run_case(World& all, const RandomOperator& c) {
  const auto group =
      c.groups > 1 ? test::group_of(all, c.problem.ranks, {.heap_bytes = 1 << 24, .wait_limit = 60}) : nullptr;
  World& world = group ? *group : all;
  const auto op = test::make_operator(world, c.problem.op, c.shape(), c.options);
  for (const std::int64_t m : c.rows) {
    Problem problem = c.problem;
    problem.m = m;
    const auto values = c.values(problem, all, world);
    test::ProblemMemory memory(problem, *values, world.rank());
    op->run(c.operands(memory));
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
    const RandomOperator c = random_case(random);
    SCOPED_TRACE(fmt::format("case {}: {}", i, test::describe(c)));
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
