// With IMBREX_CHECK_CALLS=1, calls that differ between ranks are refused on every rank, and the ranks go on.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "imbrex/c.h"
#include "imbrex/collectives.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

// Before anything looks.
[[maybe_unused]] const int set = setenv("IMBREX_CHECK_CALLS", "1", 1);

constexpr WorldOptions options{.heap_bytes = 1 << 24, .wait_limit = 20};

OperatorOptions on_cpu() {
  OperatorOptions cpu;
  cpu.device = Device::cpu;
  return cpu;
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input) << error.what();
    return error.what();
  }
  return "nothing was refused";
}

int run(int ranks, bool processes, const std::function<int(World&)>& body) {
  return processes ? run_processes(ranks, options, body) : run_threads(ranks, options, body);
}

// A is rank + 1 everywhere, B is 1.
struct Sum {
  std::vector<float> a, b, out;
  Sum(World& world, std::int64_t m)
      : a(static_cast<std::size_t>(m * 4), static_cast<float>(world.rank() + 1)), b(16, 1), out(a.size()) {}
  void run(GemmOperator& op) {
    const auto m = static_cast<std::int64_t>(a.size() / 4);
    op.run({op.operand("a", a.data(), m), op.operand("b", b.data()), op.operand("out", out.data(), m)});
  }
};

TEST(CheckCalls, NameTheRankWhoseMDiffers) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 12; ++i) {
    const int ranks = static_cast<int>(random.between(3, 5)), odd = static_cast<int>(random.between(0, ranks - 1));
    const std::int64_t common = random.between(1, 9), other = 1 + (common + random.between(0, 7)) % 9;
    ASSERT_NE(common, other);
    const auto body = [&](World& world) {
      GemmAllReduce op(world, {.m = 9, .n = 4, .k = 4 * ranks, .type = Type::fp32, .any_m = true}, on_cpu());
      const auto same = [&](std::int64_t m) {
        Sum sum(world, m);
        sum.run(op);
        return sum.out == std::vector<float>(sum.out.size(), static_cast<float>(2 * ranks * (ranks + 1)));
      };
      if (!same(common)) return 1;
      Sum wrong(world, world.rank() == odd ? other : common);
      const std::string message = refusal([&] { wrong.run(op); });
      if (wrong.out != std::vector<float>(wrong.out.size())) return 1;
      const std::string begin = "ranks disagree on a call of an operator: rank " + std::to_string(odd) +
                                " asks for m = " + std::to_string(other) + ", ranks ",
                        end = " for m = " + std::to_string(common);
      if (!message.starts_with(begin) || !message.ends_with(end)) {
        ADD_FAILURE() << message;
        return 1;
      }
      return same(other) && same(common) ? 0 : 1;
    };
    EXPECT_EQ(run(ranks, i % 4 == 0, body), 0) << ranks << " ranks";
  }
}

// Two operators in the wrong order, and an operator that meets a collective.
TEST(CheckCalls, NameTheRankThatCallsSomethingElse) {
  const auto body = [](World& world) {
    const GemmShape shape{.m = 4, .n = 4, .k = 12, .type = Type::fp32};
    GemmAllReduce sum(world, shape, on_cpu());
    GemmAllToAll exchange(world, {.m = 6, .n = 4, .k = 4, .type = Type::fp32}, on_cpu());
    AllReduce reduce(world, 16, Type::fp32, {}, Device::cpu);
    std::vector<float> x(64), y(64);
    const auto call = [&](GemmOperator& op) {
      op.run({op.operand("a", x.data()), op.operand("b", x.data()), op.operand("out", y.data())});
    };
    EXPECT_EQ(refusal([&] { world.rank() == 2 ? call(exchange) : call(sum); }),
              "ranks disagree on a call of an operator: rank 2 asks for operator = gemm_all_to_all, ranks 0 and 1 for "
              "operator = gemm_all_reduce");
    const View in = View::vector(x.data(), Type::fp32, 16), out = View::vector(y.data(), Type::fp32, 16);
    EXPECT_EQ(refusal([&] {
                world.rank() == 0 ? reduce.run({{"in", in}, {"out", out}}) : call(sum);
              }),
              "ranks are asked for different things: rank 0 asks for a call of an all-reduce, ranks 1 and 2 for a call "
              "of an operator");
    call(sum);
    call(exchange);
    reduce.run({{"in", in}, {"out", out}});
    return 0;
  };
  EXPECT_EQ(run(3, false, body), 0);
}

TEST(CheckCalls, NameTheRankWhoseCountDiffers) {
  const auto body = [](World& world) {
    AllReduce reduce(world, 16, Type::fp32, {}, Device::cpu);
    Exchange gather(world, ExchangeKind::all_gather, 16, Type::fp32, {}, Device::cpu);
    AllReduceRmsNorm norm(world, 4, 8, Type::fp32, {}, Device::cpu);
    std::vector<float> in(64), weight(8), residual(64), out(64);
    const auto view = [](std::vector<float>& of, std::int64_t count) {
      return View::vector(of.data(), Type::fp32, count);
    };
    const std::int64_t count = world.rank() == 1 ? 8 : 16;
    EXPECT_EQ(refusal([&] {
                reduce.run({{"in", view(in, count)}, {"out", view(out, count)}});
              }),
              "ranks disagree on a call of an all-reduce: rank 1 asks for count = 8, ranks 0 and 2 for count = 16");
    EXPECT_EQ(refusal([&] {
                gather.run({{"in", view(in, count)}, {"out", view(out, 3 * count)}});
              }),
              "ranks disagree on a call of an exchange: rank 1 asks for count = 8, ranks 0 and 2 for count = 16");
    EXPECT_EQ(refusal([&] {
                norm.run({{"in", view(in, count)},
                          {"weight", view(weight, 8)},
                          {"residual_out", view(residual, count)},
                          {"out", view(out, count)}});
              }),
              "ranks disagree on a call of an all-reduce with RMSNorm: rank 1 asks for rows = 1, ranks 0 and 2 for "
              "rows = 2");
    reduce.run({{"in", view(in, 16)}, {"out", view(out, 16)}});
    return 0;
  };
  EXPECT_EQ(run(3, false, body), 0);
}

// Unchecked, the world would fail.
TEST(CheckCalls, ARefusalOfOneRankIsEverybodys) {
  const auto body = [](World& world) {
    GemmAllReduce op(world, {.m = 4, .n = 4, .k = 12, .type = Type::fp32, .any_m = true}, on_cpu());
    Sum good(world, 4), bad(world, world.rank() == 1 ? 5 : 4);
    std::vector<Operand> all{{"a", View::matrix(bad.a.data(), Type::fp32, world.rank() == 1 ? 5 : 4, 4)},
                             op.operand("b", bad.b.data()),
                             op.operand("out", bad.out.data())};
    const std::string own = "operand a is 5 x 4: M = 5; this operator takes M from 1 to 4";
    EXPECT_EQ(refusal([&] { op.run(all); }), world.rank() == 1 ? own : "rank 1: " + own);
    good.run(op);
    return 0;
  };
  EXPECT_EQ(run(3, false, body), 0);
}

// What C's part of a call refuses, before the operator sees it, is everybody's, too.
TEST(CheckCalls, ARefusalInCIsEverybodys) {
  imbrex_unique_id id;
  ASSERT_EQ(imbrex_make_unique_id(&id), IMBREX_OK);
  const auto rank_main = [&](int rank) {
    imbrex_world_options roomy{};
    roomy.size = sizeof roomy;
    roomy.heap_bytes = 1 << 24;
    roomy.wait_limit = 20;
    imbrex_world* world = nullptr;
    EXPECT_EQ(imbrex_world_connect(&id, rank, 2, &roomy, &world), IMBREX_OK) << imbrex_error_message();
    imbrex_collective* sum = nullptr;
    imbrex_all_reduce_options cpu{};
    cpu.size = sizeof cpu;
    cpu.device = IMBREX_CPU;
    EXPECT_EQ(imbrex_all_reduce_make(world, 4, IMBREX_FP32, &cpu, &sum), IMBREX_OK) << imbrex_error_message();
    float values[4] = {1, 2, 3, 4};
    const imbrex_view view{values, IMBREX_FP32, 1, {4}, {1}};
    imbrex_operand operands[] = {{"in", view}, {rank == 1 ? nullptr : "out", view}};
    EXPECT_EQ(imbrex_collective_run(sum, operands, 2, nullptr), IMBREX_INVALID_INPUT);
    EXPECT_EQ(std::string(imbrex_error_message()),
              rank == 1 ? "operands[1].name is null" : "rank 1: operands[1].name is null");
    operands[1].name = "out";
    EXPECT_EQ(imbrex_collective_run(sum, operands, 2, nullptr), IMBREX_OK) << imbrex_error_message();
    EXPECT_EQ(values[3], 8);
    EXPECT_EQ(imbrex_collective_destroy(sum), IMBREX_OK);
    EXPECT_EQ(imbrex_world_destroy(world), IMBREX_OK);
  };
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  rank_main(child == 0 ? 1 : 0);
  if (child == 0) _exit(HasFailure() ? 1 : 0);
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace imbrex
