// Operators on random problems on GPUs, as callers hold their data: by all ranks or two worlds of half of them, with
// both layouts of B, rows that lie apart, operands of three dimensions, lists of 1 to 3 B, the gathered A, and M below
// the largest. Within their bounds of float64, and exactly where integers in fp32 allow it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "execute/cuda/refusal.hpp"
#include "gpu/operators/operator_subject.hpp"
#include "plan/problem.hpp"
#include "support/groups.hpp"
#include "support/random_operator.hpp"

namespace imbrex {
namespace {

using test::Random, test::RandomOperator;

// Libraries' collectives are not for threads that share a GPU.
Strategy random_strategy(Random& random, const Problem& p) {
#if defined(IMBREX_HAVE_LIBRARIES)
  // Libraries round some products before they add a bias: those are refused.
  if (test::runs_here(Strategy::sequential, Transport::push) && cuda::refusal_of_library_bias(p).empty() &&
      random.chance(0.6)) {
    if (!plan::has_one_output(p)) return random.one_of({Strategy::sequential, Strategy::decomposed});
    return random.one_of({Strategy::sequential, Strategy::decomposed, Strategy::signaled});
  }
#endif
  static_cast<void>(p);
  return Strategy::fused;
}

RandomOperator random_case(Random& random, int ranks) {
  RandomOperator c;
  c.groups = ranks % 2 == 0 && ranks > 2 && random.chance(0.25) ? 2 : 1;
  Problem& p = c.problem;
  p.op = random.one_of({Operator::all_gather_gemm, Operator::all_gather_gemm, Operator::gemm_reduce_scatter,
                        Operator::gemm_all_reduce, Operator::gemm_all_to_all});
  p.ranks = ranks / c.groups;
  test::set_type(random, p, random.one_of({Type::bf16, Type::bf16, Type::fp16, Type::fp32, Type::e4m3}));
  // Sixteens suit every kernel; the plain one takes the rest, and cuBLASLt some of it.
  const bool even = p.type == Type::e4m3 || test::ranks_are_processes() || random.chance(0.7);
  const std::int64_t step = even ? 16 : 1;
  const auto size = [&](std::int64_t unit, std::int64_t most) { return unit * random.between(1, most / unit); };
  test::draw_sizes(
      p, [&](const std::int64_t* at) { return p.ranks * size(at == &p.m ? 1 : step, 600 / p.ranks); },
      [&](const std::int64_t* at) { return size(at == &p.m ? 1 : step, 400); });
  p.bias = random.chance(0.3);
  if (p.op == Operator::all_gather_gemm) {
    p.gathered_a = random.chance(0.5);
    for (std::int64_t i = 0, more = p.scales == Scales::none ? random.between(0, 2) : 0; i < more; ++i)
      p.more_n[static_cast<std::size_t>(i)] = p.ranks * size(step, 400 / p.ranks);
  }
  c.exact = p.type == Type::fp32;
  if (random.chance(0.5)) test::add_pitches(random, p, 16);
  const Strategy strategy = random_strategy(random, p);
  c.options = test::options_of(strategy, Transport::store, 7);
  c.options.cuda.heap_bytes = std::size_t{1} << 26;
  if (strategy != Strategy::fused)
    c.options.knobs = Knobs{.chunks = static_cast<int>(random.between(1, 3)), .kept_free = 8};
  c.options.knobs->partial = output_type(p.type);
  // Tiles with library collectives are refused for any M.
  test::draw_calls(random, c, strategy != Strategy::signaled);
  return c;
}

void run_case(World& all, World& world, const RandomOperator& c) {
  const auto op = test::make_operator(world, c.problem.op, c.shape(), c.options);
  ASSERT_EQ(op->device(), Device::cuda);
  for (const std::int64_t m : c.rows) {
    Plan plan = op->plan();
    plan.problem.m = m;
    const auto values = c.values(plan.problem, all, world);
    test::ProblemMemory memory(plan.problem, *values, world.rank());
    test::call_on_gpu(all, *op, c.operands(memory), memory);
    if (const std::string wrong = memory.judge(plan, c.exact, Device::cuda); !wrong.empty())
      throw Error(ErrorCode::unsound, fmt::format("M = {}: {}", m, wrong));
  }
}

// Two hundred problems, in parts.
class GpuRandomOperators : public testing::TestWithParam<int> {};

TEST_P(GpuRandomOperators, AreRightHoweverTheirDataLie) {
  NEEDS_GPUS(2);
  const int ranks = test::most_ranks(), wanted = test::cases(50);
  EXPECT_EQ(
      test::on_ranks(
          ranks, 30,
          [&](World& all) {
            WorldOptions options{.heap_bytes = 1 << 20, .wait_limit = 30};
            options.gpu = all.rank() / test::ranks_per_gpu();
            const auto half = ranks > 2 ? test::group_of(all, ranks / 2, options) : nullptr;
            Random random(test::seed_from_environment() + static_cast<std::uint64_t>(GetParam()));
            int seen[8] = {};
            for (int i = 0; i < wanted; ++i) {
              const RandomOperator c = random_case(random, ranks);
              try {
                run_case(all, c.groups > 1 ? *half : all, c);
              } catch (const Error& error) {
                throw Error(error.code(), fmt::format("case {}: {}: {}", i, test::describe(c), error.what()));
              }
              const Problem& p = c.problem;
              const bool what[8] = {
                  c.exact,           c.groups > 1,         p.more_n[0] > 0, p.gathered_a,
                  test::has_gaps(p), c.rows.front() < p.m, c.parts > 1,     p.b_layout == Layout::column_major};
              for (std::size_t k = 0; k < std::size(what); ++k) seen[k] += what[k];
            }
            if (all.rank() == 0)
              fmt::print(
                  "{} problems on {} ranks: {} exact, {} by half of the ranks, {} with lists of B, {} with the "
                  "gathered A, {} with rows apart, {} with M below the largest, {} in parts, {} with B by columns\n",
                  wanted, ranks, seen[0], seen[1], seen[2], seen[3], seen[4], seen[5], seen[6], seen[7]);
          }),
      0);
}

INSTANTIATE_TEST_SUITE_P(Parts, GpuRandomOperators, testing::Range(0, 4));

}  // namespace
}  // namespace imbrex
