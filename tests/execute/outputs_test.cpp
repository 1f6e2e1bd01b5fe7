// Several B for one gathered A, and the gathered A as an output, on random problems: exactly right, or each element
// within its bound of a float64 reference, and proved before.
#include <gtest/gtest.h>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/machine.hpp"
#include "support/random_run.hpp"

namespace imbrex {
namespace {

constexpr int problems = 300;

// A case of an all-gather with further outputs.
test::RandomCase random_outputs(test::Random& random, std::int64_t max_size, bool e4m3) {
  for (;;) {
    test::RandomCase c{
        test::random_problem(random, {.max_ranks = 8, .max_size = max_size, .bias = true, .e4m3 = e4m3, .lists = true}),
        random.one_of({Strategy::sequential, Strategy::decomposed, Strategy::fused}),
        {}};
    if (c.problem.op != Operator::all_gather_gemm) continue;
    if (c.problem.more_n.front() == 0 && !c.problem.gathered_a) continue;
    c.knobs = test::random_knobs(random, c.problem, c.strategy);
    return c;
  }
}

TEST(Outputs, AreExactOnRandomProblems) {
  test::Random random(test::seed_from_environment());
  int lists = 0, gathered = 0;
  for (int i = 0; i < problems; ++i) {
    test::RandomCase c = random_outputs(random, 60, false);
    c.problem.type = c.knobs.partial = Type::fp32;
    if (i % 10 == 0) {  // cut along K
      c.problem.k = random.between(129, 500);
      c.knobs.split_k = static_cast<int>(random.between(2, 4));
      c.knobs.cluster_k = 1;
    }
    test::expect_exact(random, c, i);
    if (testing::Test::HasFailure()) return;
    lists += c.problem.more_n.front() > 0;
    gathered += c.problem.gathered_a;
  }
  EXPECT_GT(lists, problems / 3);
  EXPECT_GT(gathered, problems / 3);
}

TEST(Outputs, AreWithinTheirBoundsOnRandomProblems) {
  test::Random random(test::seed_from_environment());
  double closest = 0;
  for (int i = 0; i < problems; ++i) {
    const test::RandomCase c = random_outputs(random, i % 20 == 0 ? 300 : 100, true);
    closest = std::max(closest, test::expect_right(random, c));
    if (testing::Test::HasFailure()) return;
  }
  std::cout << "the largest error was " << closest << " of its bound\n";
  EXPECT_GT(closest, 0);
}

// The gather goes once, whatever the number of B.
TEST(Outputs, ASimulatedGatherIsSharedByAllProducts) {
  const Machine machine = load_machine("4xh200");
  const auto seconds = [&](const Problem& problem, Strategy strategy, const Knobs& knobs) {
    const Plan plan = make_plan(problem, strategy, knobs);
    EXPECT_FALSE(check(plan).has_value());
    return make_simulator(machine)->prepare(plan)->run({}).seconds;
  };
  const Problem q{Operator::all_gather_gemm, 4096, 8192, 8192, 4, Type::bf16},
      k{Operator::all_gather_gemm, 4096, 1024, 8192, 4, Type::bf16};
  Problem qkv = q;
  qkv.more_n = {1024, 1024};
  Problem with_a = qkv;
  with_a.gathered_a = true;
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed, Strategy::fused}) {
    const double apart = seconds(q, strategy, {}) + 2 * seconds(k, strategy, {}), one = seconds(qkv, strategy, {});
    EXPECT_LT(one, 0.8 * apart) << name_of(strategy);
    EXPECT_GT(one, seconds(q, strategy, {})) << name_of(strategy);
    EXPECT_GE(seconds(with_a, strategy, {}), one) << name_of(strategy);
  }
}

}  // namespace
}  // namespace imbrex
