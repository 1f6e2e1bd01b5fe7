// Operands and outputs whose rows lie further apart than they are long, on random problems: exactly right, or each
// element within its bound of a float64 reference, gaps untouched, and the plan proved before.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/convert.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "plan/problem.hpp"
#include "program/operand_memory.hpp"
#include "program/reference.hpp"
#include "support/operators.hpp"
#include "support/random_run.hpp"

namespace imbrex {
namespace {

constexpr int problems = 300;

test::RandomCase random_pitches(test::Random& random, std::int64_t max_size, bool e4m3) {
  for (;;) {
    test::RandomCase c =
        test::random_case(random, {.max_ranks = 8, .max_size = max_size, .bias = true, .e4m3 = e4m3, .lists = true});
    test::add_pitches(random, c.problem);
    if (test::has_gaps(c.problem)) return c;
  }
}

TEST(Pitches, AreExactOnRandomProblems) {
  test::Random random(test::seed_from_environment());
  int cases[4][4] = {};  // by operator and strategy
  for (int i = 0; i < problems; ++i) {
    test::RandomCase c = random_pitches(random, 60, false);
    c.problem.type = c.knobs.partial = Type::fp32;
    test::expect_exact(random, c, i);
    if (testing::Test::HasFailure()) return;
    ++cases[static_cast<int>(c.problem.op)][static_cast<int>(c.strategy)];
  }
  for (const auto& of_operator : cases)
    for (const int count : of_operator) EXPECT_GT(count, 3);
}

TEST(Pitches, AreWithinTheirBoundsOnRandomProblems) {
  test::Random random(test::seed_from_environment() + 1);
  double closest = 0;
  for (int i = 0; i < problems; ++i) {
    const test::RandomCase c = random_pitches(random, i % 20 == 0 ? 300 : 100, true);
    closest = std::max(closest, test::expect_right(random, c));
    if (testing::Test::HasFailure()) return;
  }
  std::cout << "the largest error was " << closest << " of its bound\n";
  EXPECT_GT(closest, 0);
}

// Codes go through collectives, which read and write workspaces here.
TEST(Pitches, OfSumsThatTravelAsCodes) {
  test::Random random(test::seed_from_environment() + 2);
  for (const Operator op : {Operator::gemm_all_reduce, Operator::gemm_reduce_scatter})
    for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed, Strategy::signaled}) {
      test::RandomCase c{{op, 64, 128, 64, 4, Type::bf16}, strategy, {.tile_m = 16, .tile_n = 64}};
      c.knobs.codec = parse_codec_pair("int8");
      c.problem.lda = 17, c.problem.ldb = 131, c.problem.ldo = 140;
      test::expect_right(random, c);
      if (testing::Test::HasFailure()) return;
    }
}

// The bits are those of the operator whose operands lie without gaps; with any M, for each.
TEST(Pitches, OfOperatorsChangeNoBits) {
  test::Random random(test::seed_from_environment() + 3);
  for (int i = 0; i < 32; ++i) {
    Problem p;
    do p = test::random_problem(random, {.max_ranks = 4, .max_size = 60, .bias = true});
    while (p.ranks == 1 && i % 4 != 0);
    Problem spread = p;
    test::add_pitches(random, spread);
    const bool any_m = i % 2 == 0;
    OperatorOptions options = test::on_cpu();
    options.strategy = random.one_of({Strategy::sequential, Strategy::decomposed, Strategy::fused, Strategy::signaled});
    options.knobs = test::random_knobs(random, p, *options.strategy);
    options.knobs->groups = {};
    const std::int64_t unit = plan::splits_m(p.op) ? p.ranks : 1;
    const std::int64_t less = any_m ? unit * random.between(1, p.m / unit) : p.m;
    SCOPED_TRACE(test::describe({spread, *options.strategy, *options.knobs}));
    const auto body = [&](World& world) {
      GemmShape plain = test::shape_of(p), with = test::shape_of(spread);
      plain.any_m = with.any_m = any_m;
      const auto one = test::make_operator(world, p.op, plain, options),
                 other = test::make_operator(world, p.op, with, options);
      for (const std::int64_t m : {p.m, less, p.m}) {
        Problem of_m = p, spread_of_m = spread;
        of_m.m = spread_of_m.m = m;
        if (test::result_of(world, *one, of_m, 5) != test::result_of(world, *other, spread_of_m, 5)) return 1;
      }
      return 0;
    };
    ASSERT_EQ(run_threads(p.ranks, {.heap_bytes = 1 << 25, .wait_limit = 60}, body), 0);
  }
}

// Left to itself, an operator takes a plan that is right, too, and its memory for the output has room for the gaps.
TEST(Pitches, OfOperatorsThatChooseForThemselves) {
  for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                            Operator::gemm_all_to_all}) {
    const Problem p{.op = op, .m = 64, .n = 32, .k = 64, .ranks = 2, .lda = 72, .ldb = 40, .ldo = 33};
    const auto body = [&](World& world) {
      const auto own = test::make_operator(world, op, test::shape_of(p), test::on_cpu());
      const std::vector<std::byte> got = test::result_of(world, *own, p, 5);
      const auto values = test::seeded_operands(p, 5);
      const program::Reference reference = program::reference_of(own->plan(), *values, world.rank());
      const OperandInfo out = own->operands().back();
      std::fill_n(static_cast<std::byte*>(own->allocate_output().get()), out.bytes(), std::byte{1});
      return program::compare(reference, base::floats_of(p.type, got), p.type, out.cols).worst <= 1 ? 0 : 1;
    };
    EXPECT_EQ(run_threads(2, {.heap_bytes = 1 << 24, .wait_limit = 60}, body), 0) << name_of(op);
  }
}

// Ranks whose operands lie differently are told apart before anything is made, and wrong numbers are refused by name.
TEST(Pitches, OfOperatorsAreTheSameOnEveryRank) {
  std::string messages[2];
  run_threads(2, {.heap_bytes = 1 << 22, .wait_limit = 20}, [&](World& world) {
    GemmShape shape{.m = 8, .n = 8, .k = 8, .type = Type::fp32};
    shape.ldo = 8 + world.rank();
    messages[world.rank()] = test::error_of([&] { GemmReduceScatter op(world, shape, test::on_cpu()); });
    return 0;
  });
  for (const std::string& message : messages) EXPECT_NE(message.find("ldo"), std::string::npos) << message;
  run_threads(1, {.heap_bytes = 1 << 22}, [&](World& world) {
    messages[0] = test::error_of(
        [&] { GemmAllReduce op(world, {.m = 8, .n = 8, .k = 8, .type = Type::fp32, .ldb = 7}, test::on_cpu()); });
    return 0;
  });
  EXPECT_EQ(messages[0], "ldb = 7: it must be 0, or from 8, the elements of a row of b, to 2147483647");
}

// What a run checks afterwards: elements apart, and gaps that may not change.
TEST(Pitches, AWriteBetweenRowsIsNoticed) {
  const Problem problem{.op = Operator::gemm_all_to_all, .m = 3, .n = 4, .k = 5, .type = Type::fp16, .ldo = 6};
  const OperandInfo out = operands_of(problem).back();
  const auto memory = program::host_operands({}, problem);
  memory->poison();
  std::vector<std::byte> bytes = memory->output();
  ASSERT_EQ(bytes.size(), (2 * 6 + 4) * 2u);
  EXPECT_TRUE(program::gaps_are_poison(out, bytes));
  for (std::size_t element = 0; element < bytes.size() / 2; ++element) {
    std::vector<std::byte> changed = bytes;
    changed[2 * element + 1] = std::byte{7};
    const bool gap = element % 6 >= 4;
    EXPECT_EQ(program::gaps_are_poison(out, changed), !gap) << element;
    const std::vector<std::byte> values = program::without_gaps(out, changed);
    ASSERT_EQ(values.size(), 3 * 4 * 2u);
    EXPECT_EQ(std::count(values.begin(), values.end(), std::byte{7}), gap ? 0 : 1) << element;
    if (gap) continue;
    EXPECT_EQ(values[2 * (element / 6 * 4 + element % 6) + 1], std::byte{7});
  }
}

}  // namespace
}  // namespace imbrex
