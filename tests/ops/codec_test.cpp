// Operators whose sums go through a codec, on the CPU: right within what they report, chosen by themselves, the same
// bits on every rank.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "base/hash.hpp"
#include "imbrex/error.hpp"
#include "support/operators.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::OperatorCase;
using test::Random;

const WorldOptions roomy{.heap_bytes = 1 << 24, .wait_limit = 30};

OperatorOptions through(const char* codec) {
  OperatorOptions options;
  options.device = Device::cpu;
  options.codec = parse_codec_pair(codec);
  return options;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input) << error.what();
    return error.what();
  }
  return "";
}

int fail(int trial, const std::string& what) {
  fmt::print(stderr, "trial {}: {}\n", trial, what);
  return 1;
}

bool same_on_all(World& world, const std::vector<std::byte>& bytes) {
  const std::uint64_t own = base::hash_of(bytes);
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.all_gather(&own, all.data(), sizeof own);
  return std::all_of(all.begin(), all.end(), [&](std::uint64_t other) { return other == own; });
}

bool goes_through(const Plan& plan, const CodecPair& codec) {
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks)
        if (const auto* work = std::get_if<Collective>(&task.work)) return work->codec == codec;
  return false;
}

// Operands from a seed, judged by the reference, which derives a bound of its own.
int stay_within_bounds(World& world, std::uint64_t seed, int trials) {
  Random random(seed);
  for (int trial = 0; trial < trials; ++trial) {
    const bool reduces = random.chance(0.5);
    const Operator op = reduces ? Operator::gemm_all_reduce : Operator::gemm_reduce_scatter;
    GemmShape shape;
    shape.m = (reduces ? 1 : world.size()) * random.between(1, 40);
    shape.n = random.between(1, 90);
    shape.k = world.size() * random.between(1, 40);
    shape.type = random.one_of({Type::bf16, Type::fp16, Type::fp32});
    shape.bias = random.chance(0.3);
    const char* codec = reduces ? random.one_of({"int8", "int4+int8", "fp8-g64", "int6-asym-g128", "flash6"})
                                : random.one_of({"int8", "int4-asym-g64", "fp8", "int5-fp32"});
    OperatorOptions options = through(codec);
    if (random.chance(0.3)) options.strategy = Strategy::decomposed;
    if (random.chance(0.3)) options.knobs = Knobs{.chunks = 3, .partial = output_type(shape.type)};
    OperatorCase c(world, op, shape, options, static_cast<std::uint64_t>(random.between(1, 1000000)));
    if (!goes_through(c.op().plan(), *options.codec)) return fail(trial, "no collective goes through the codec");
    const CodecReport before = c.op().codec_report();
    if (before.groups != 0 || before.largest_error != 0) return fail(trial, "a report before the first call");
    for (int repeat = 0; repeat < 2; ++repeat) {
      std::vector<std::byte> out(c.out_bytes());
      c.op().run(c.operands(out.data()));
      if (const std::string wrong = c.judge(out); !wrong.empty()) return fail(trial, wrong);
      if (reduces && !same_on_all(world, out)) return fail(trial, "the ranks' bits differ");
      const CodecReport report = c.op().codec_report();
      if (!(report.largest_error > 0) || report.groups <= 0 || report.non_finite != 0)
        return fail(trial, fmt::format("{} {}: the report says {}, {} groups, {} not finite", name_of(op), codec,
                                       report.largest_error, report.groups, report.non_finite));
    }
  }
  return 0;
}

TEST(QuantizedOperators, StayWithinTheReferencesBound) {
  const std::uint64_t seed = test::seed_from_environment();
  for (const int ranks : {2, 3})
    EXPECT_EQ(run_threads(ranks, roomy, [&](World& world) { return stay_within_bounds(world, seed, 12); }), 0);
  EXPECT_EQ(run_processes(4, roomy, [&](World& world) { return stay_within_bounds(world, seed + 1, 12); }), 0);
}

// Small integers: every product and sum is exact in fp32, so that what is off is the codec's doing, and may be off
// by no more than the report says. The report, in turn, is no more than what groups of such values can cost.
int report_what_happens(World& world, std::uint64_t seed) {
  Random random(seed);
  for (int trial = 0; trial < 8; ++trial) {
    const bool reduces = trial % 2 == 0;
    const std::int64_t ranks = world.size(), m = 4 * ranks, n = 48, part = 6;
    std::vector<float> a(static_cast<std::size_t>(m * part * ranks)), b(static_cast<std::size_t>(part * ranks * n));
    for (auto* values : {&a, &b})
      for (float& value : *values) value = static_cast<float>(random.between(-3, 3));
    const auto at = [](const std::vector<float>& v, std::int64_t i) { return v[static_cast<std::size_t>(i)]; };
    const std::int64_t k = part * ranks;
    std::vector<float> own_a, own_b;
    for (std::int64_t i = 0; i < m; ++i)
      for (std::int64_t j = 0; j < part; ++j) own_a.push_back(at(a, i * k + world.rank() * part + j));
    for (std::int64_t j = 0; j < part; ++j)
      for (std::int64_t l = 0; l < n; ++l) own_b.push_back(at(b, (world.rank() * part + j) * n + l));

    const char* codec = random.one_of({"int8", "int4", "int3"});
    const auto op = test::make_operator(world, reduces ? Operator::gemm_all_reduce : Operator::gemm_reduce_scatter,
                                        {.m = m, .n = n, .k = k, .type = Type::fp32}, through(codec));
    const std::int64_t rows = reduces ? m : m / ranks, first = reduces ? 0 : world.rank() * rows;
    std::vector<float> out(static_cast<std::size_t>(rows * n));
    op->run({op->operand("a", own_a.data()), op->operand("b", own_b.data()), op->operand("out", out.data())});
    const CodecReport report = op->codec_report();
    float worst = 0, largest = 0;
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t l = 0; l < n; ++l) {
        float sum = 0;
        for (std::int64_t j = 0; j < k; ++j) sum += at(a, (first + i) * k + j) * at(b, j * n + l);
        worst = std::max(worst, std::fabs(at(out, i * n + l) - sum));
        largest = std::max(largest, std::fabs(sum));
      }
    if (worst > report.largest_error)
      return fail(trial,
                  fmt::format("{}: an element is off by {}, the report says {}", codec, worst, report.largest_error));
    // A rank's part lies within 9 * part, and a sum within as much for every rank.
    const Codec step = parse_codec(codec);
    const auto most = static_cast<float>(9 * part), sums = most * static_cast<float>(ranks);
    const float limit = static_cast<float>(ranks) * error_bound(step, -most, most) +
                        (reduces ? error_bound(step, -2 * sums, 2 * sums) : 0) + 1e-3f;
    if (report.largest_error > limit)
      return fail(trial, fmt::format("{}: the report says {}, more than {}", codec, report.largest_error, limit));
    const std::int64_t block = (rows * n + 31) / 32;
    const std::int64_t groups = reduces ? block * (ranks + 1) : block * ranks * ranks;
    if (report.groups != groups) return fail(trial, fmt::format("{} groups, not {}", report.groups, groups));
  }
  return 0;
}

TEST(QuantizedOperators, ReportABoundThatHolds) {
  const std::uint64_t seed = test::seed_from_environment();
  EXPECT_EQ(run_threads(3, roomy, [&](World& world) { return report_what_happens(world, seed); }), 0);
  EXPECT_EQ(run_processes(4, roomy, [&](World& world) { return report_what_happens(world, seed + 1); }), 0);
}

TEST(QuantizedOperators, NonFiniteSumsAreCountedOnce) {
  const int code = run_threads(2, roomy, [](World& world) {
    for (const Operator op : {Operator::gemm_all_reduce, Operator::gemm_reduce_scatter}) {
      const auto made = test::make_operator(world, op, {.m = 4, .n = 4, .k = 4, .type = Type::fp32}, through("int8"));
      std::vector<float> a(8, 1), b(8, 1), out(16);
      if (world.rank() == 0) a[0] = INFINITY;  // in row 0, and so in four sums
      made->run({made->operand("a", a.data()), made->operand("b", b.data()), made->operand("out", out.data())});
      EXPECT_EQ(made->codec_report().non_finite, 4) << name_of(op);
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(QuantizedOperators, OneRankSendsNothing) {
  const int code = run_threads(1, roomy, [](World& world) {
    OperatorCase c(world, Operator::gemm_all_reduce, {.m = 8, .n = 8, .k = 8}, through("int4"));
    std::vector<std::byte> out(c.out_bytes());
    c.op().run(c.operands(out.data()));
    EXPECT_EQ(c.judge(out), "");
    EXPECT_EQ(c.op().codec_report().groups, 0);
    EXPECT_EQ(c.op().codec_report().largest_error, 0);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(QuantizedOperators, RefuseWhatSendsNoCodes) {
  const int code = run_threads(2, roomy, [](World& world) {
    const GemmShape shape{.m = 8, .n = 8, .k = 8, .type = Type::fp32};
    const auto refusal = [&](Operator op, const OperatorOptions& options) {
      return error_of([&] { test::make_operator(world, op, shape, options); });
    };
    const auto has = [](const std::string& text, const char* words) { return text.find(words) != std::string::npos; };
    EXPECT_TRUE(has(refusal(Operator::all_gather_gemm, through("int8")), "codec int8: all_gather_gemm sums nothing"));
    EXPECT_TRUE(has(refusal(Operator::gemm_all_to_all, through("int8")), "codec int8: gemm_all_to_all sums nothing"));
    EXPECT_TRUE(has(refusal(Operator::gemm_reduce_scatter, through("int4+int8")), "a reduce-scatter has one phase"));
    OperatorOptions options = through("int8");
    options.strategy = Strategy::fused;
    EXPECT_TRUE(has(refusal(Operator::gemm_all_reduce, options), "strategy fused sends no codes"));
    options = through("int8");
    options.codec->all_gather.group = 33;
    EXPECT_NE(refusal(Operator::gemm_all_reduce, options), "");
    options = through("int8");
    options.knobs = Knobs{};
    options.knobs->codec = parse_codec_pair("int4");
    EXPECT_EQ(refusal(Operator::gemm_all_reduce, options), "codec int8 and knob codec int4: they are one and the same");
    options = through("int8");
    if (world.rank() == 1) options.codec = parse_codec_pair("int4");
    EXPECT_TRUE(has(refusal(Operator::gemm_all_reduce, options), "codec = int"));

    OperatorOptions exact;
    exact.device = Device::cpu;
    GemmAllReduce op{world, shape, exact};
    EXPECT_EQ(error_of([&] { op.codec_report(); }), "codec_report: gemm_all_reduce was made without a codec");
    return 0;
  });
  EXPECT_EQ(code, 0);
}

// The choice is the same plan as with the knob, and chunks are among the candidates.
TEST(QuantizedOperators, TheirPlanIsChosen) {
  const Machine machine = load_machine("4xh200");
  int chunked = 0;
  for (const std::int64_t m : {64, 1024, 16384})
    for (const Operator op : {Operator::gemm_all_reduce, Operator::gemm_reduce_scatter}) {
      OperatorOptions options;
      options.codec = parse_codec_pair("int8");
      const Plan plan = choose_plan({op, m, 8192, 8192, 4, Type::bf16}, machine, options);
      EXPECT_NE(plan.strategy, Strategy::fused);
      EXPECT_EQ(plan.knobs.codec, options.codec);
      EXPECT_TRUE(goes_through(plan, *options.codec));
      EXPECT_FALSE(check(plan).has_value());
      chunked += plan.strategy == Strategy::decomposed;
    }
  EXPECT_GT(chunked, 0);
}

}  // namespace
}  // namespace imbrex
