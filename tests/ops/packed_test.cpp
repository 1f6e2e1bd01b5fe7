// Packed outputs and the operations that put them back in rows, on the CPU.
#include "imbrex/packed.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/convert.hpp"
#include "collectives/rms_norm_case.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "plan/problem.hpp"
#include "support/operators.hpp"
#include "support/packed_case.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::error_of, test::PackedCase, test::put_back_case;

std::vector<PackedCase> random_cases(int count) {
  std::mt19937_64 random(test::seed_from_environment());
  std::vector<PackedCase> cases;
  for (int i = 0; i < count; ++i) cases.push_back(test::random_packed_case(random, 1));
  return cases;
}

TEST(PutBack, CopiesExactly) {
  for (PackedCase c : random_cases(100)) {
    c.operation = RowOperation::copy;
    c.residual = c.bias = false;
    c.make();
    const test::PackedResult result = put_back_case(c, test::host_call);
    EXPECT_EQ(result.out, c.rows_of_in()) << c.text();
  }
}

TEST(PutBack, IsWithinItsBounds) {
  int operations[4] = {};
  for (const PackedCase& c : random_cases(200)) {
    const test::PackedResult result = put_back_case(c, test::host_call);
    EXPECT_EQ(test::fault_of(c, result), "") << c.text();
    ++operations[static_cast<int>(c.operation)];
  }
  for (const int count : operations) EXPECT_GT(count, 10);
}

// A result that is off by more than its bound is found out.
TEST(PutBack, IsJudged) {
  for (PackedCase c : random_cases(20)) {
    c.type = Type::bf16;
    c.make();
    test::PackedResult result = put_back_case(c, test::host_call);
    std::vector<float> values = base::floats_of(c.type, result.out);
    const auto largest =
        std::max_element(values.begin(), values.end(), [](float x, float y) { return std::fabs(x) < std::fabs(y); });
    *largest *= 1.02f;
    result.out = base::elements_of(c.type, values);
    EXPECT_NE(test::fault_of(c, result), "") << c.text();
  }
}

TEST(PutBack, GivesTheSameBitsThroughTheMapAndWithout) {
  for (const PackedCase& c : random_cases(100)) {
    const test::PackedResult packed = put_back_case(c, test::host_call), rows = put_back_case(c, test::host_call, true);
    EXPECT_EQ(packed.out, rows.out) << c.text();
    EXPECT_EQ(packed.residual_out, rows.residual_out) << c.text();
  }
}

TEST(PutBack, RefusesWhatDoesNotFit) {
  std::vector<float> in(24), out(24), weight(6);
  const std::int32_t first_rows[] = {0, 2, 4, 6, 8, 10};
  PackedLayout layout{4, 6, 2, 2, first_rows, Device::cpu};
  const auto view = [](std::vector<float>& v) { return View::vector(v.data(), Type::fp32, std::ssize(v)); };
  const auto norm = [&](const PackedLayout& l) {
    return error_of([&] {
      put_back(RowOperation::rms_norm, l, {{"in", view(in)}, {"weight", view(weight)}, {"out", view(out)}});
    });
  };
  EXPECT_EQ(norm(layout), "");
  PackedLayout wrong = layout;
  wrong.block_cols = 4;
  EXPECT_EQ(norm(wrong),
            "layout in blocks of 2 x 4: their rows must be from 1 to 2147483647, and their columns divide cols = 6");
  wrong = layout;
  wrong.rows = 5;
  EXPECT_EQ(norm(wrong), "operand in has 24 elements; it must have 30");
  wrong = layout;
  wrong.device = Device::automatic;
  EXPECT_EQ(norm(wrong), "layout.device = auto: it must be cpu or cuda");
  const auto call = [&](RowOperation operation, const Operands& operands, float eps = 0) {
    return error_of([&] { put_back(operation, layout, operands, eps); });
  };
  EXPECT_EQ(call(RowOperation::copy, {{"in", view(in)}, {"out", view(in)}}).rfind("operand out at ", 0), 0U);
  EXPECT_EQ(call(RowOperation::copy, {{"in", view(in)}, {"out", view(out)}, {"bias", view(weight)}}),
            "operand bias: copy takes no operand of that name");
  EXPECT_EQ(call(RowOperation::gelu, {{"in", view(in)}, {"out", view(out)}}, -1),
            "eps = -1: it must be finite and not negative");
  std::vector<float> residual(24);
  EXPECT_EQ(call(RowOperation::rms_norm,
                 {{"in", view(in)}, {"weight", view(weight)}, {"residual", view(residual)}, {"out", view(out)}}),
            "operands residual and residual_out: both must be given, or neither");
  layout.cols = 3;
  layout.block_cols = 3;
  EXPECT_EQ(call(RowOperation::silu_multiply, {{"in", view(in)}, {"out", view(out)}}),
            "silu_multiply of 3 columns: they must be two halves");
}

// ---------------------------------------------------------------------------------------------- packed operators

Knobs packed_knobs(std::int64_t tile_m, std::int64_t tile_n, int group, int chunks, Type partial) {
  Knobs knobs{.tile_m = tile_m, .tile_n = tile_n, .group = group, .chunks = chunks, .partial = partial};
  knobs.packed = true;
  return knobs;
}

TEST(PackedOperator, PlansAreSound) {
  for (const int ranks : {1, 2, 5})
    for (const bool bias : {false, true})
      for (const std::int64_t m : {1, 40, 63}) {
        Problem problem{Operator::gemm_all_reduce, m, 48, 10 * ranks, ranks, Type::fp32, bias};
        const Knobs knobs = packed_knobs(8, 16, 3, 4, Type::fp32);
        problem.packed = plan::packed_blocks(problem, knobs);
        const std::int64_t tiles = (m + 7) / 8 * 3;
        Knobs cut = knobs;
        cut.chunks = static_cast<int>(std::min<std::int64_t>(4, tiles));
        const Plan plan = make_plan(problem, Strategy::signaled, cut);
        const auto finding = check(plan);
        EXPECT_FALSE(finding.has_value()) << finding->message;
        EXPECT_EQ(parse_plan(to_json(plan)), plan);
        // What lies elsewhere is found out.
        Plan wrong = plan;
        wrong.problem.packed.rows += 8;
        EXPECT_EQ(check(wrong).has_value(), m > 24);
      }
}

TEST(PackedOperator, PlansOfOthersAreRefused) {
  Problem problem{Operator::gemm_all_reduce, 64, 48, 16, 2, Type::fp32};
  problem.packed = {24, 16};
  EXPECT_EQ(error_of([&] { make_plan(problem, Strategy::sequential, {}); }),
            "packed = 24 x 16: strategy signaled leaves its output so, with the knob packed; sequential does not");
  EXPECT_EQ(error_of([&] { make_plan(problem, Strategy::signaled, packed_knobs(8, 16, 2, 1, Type::fp32)); }),
            "packed = 24 x 16: tile_m = 8, group = 2 and tile_n = 16 leave blocks of 16 x 16");
  problem.packed = {24, 10};
  EXPECT_EQ(error_of([&] { validate(problem); }),
            "packed = 24 x 10: the rows of a block must be from 1 to 2147483647, and its columns divide N = 48");
  problem.packed = {24, 16};
  problem.ldo = 50;
  EXPECT_EQ(error_of([&] { validate(problem); }),
            "ldo = 50 with a packed output, which lies without gaps: it must be 0");
  problem = {Operator::gemm_reduce_scatter, 64, 48, 16, 2, Type::fp32};
  problem.packed = {24, 16};
  EXPECT_EQ(error_of([&] { validate(problem); }),
            "packed = 24 x 16 with gemm_reduce_scatter: only gemm_all_reduce leaves its output packed");
}

// Put back, it is what the same operator gives in rows.
TEST(PackedOperator, GivesTheSameBitsAsInRows) {
  for (const bool chosen : {false, true}) {
    const int code = run_threads(3, {.heap_bytes = 1 << 24, .wait_limit = 30}, [&](World& world) {
      GemmShape shape{.m = 37, .n = 64, .k = 30, .type = Type::fp32};
      OperatorOptions options = test::on_cpu();
      options.strategy = Strategy::signaled;
      if (!chosen) options.knobs = packed_knobs(8, 16, 2, 3, Type::fp32);
      GemmAllReduce in_rows(world, shape, options);
      shape.packed = true;
      GemmAllReduce packed(world, shape, options);
      const PackedLayout layout = packed.packed_layout();
      std::vector<float> a(37 * 10), b(10 * 64), y(37 * 64), z(y.size()), back(y.size());
      std::iota(a.begin(), a.end(), static_cast<float>(world.rank()));
      std::iota(b.begin(), b.end(), -30.0f);
      const auto run = [&](GemmOperator& op, std::vector<float>& out) {
        op.run({op.operand("a", a.data()), op.operand("b", b.data()), op.operand("out", out.data())});
      };
      run(in_rows, y);
      run(packed, z);
      if (layout.rows != 37 || layout.cols != 64 || layout.first_rows == nullptr) return 1;
      put_back(RowOperation::copy, layout,
               {{"in", View::matrix(z.data(), Type::fp32, layout.packed_rows(), layout.packed_cols())},
                {"out", View::matrix(back.data(), Type::fp32, 37, 64)}});
      if (layout.block_cols == 64 ? z != y : z == y) return 2;
      return back == y ? 0 : 3;
    });
    EXPECT_EQ(code, 0) << (chosen ? "knobs that were chosen" : "given knobs");
  }
}

TEST(PackedOperator, RefusesWhatItCannotPack) {
  const int code = run_threads(2, {.heap_bytes = 1 << 24, .wait_limit = 30}, [&](World& world) {
    GemmShape shape{.m = 16, .n = 50, .k = 8, .type = Type::fp32, .packed = true};
    OperatorOptions options = test::on_cpu();
    const auto refusal = [&] { return error_of([&] { GemmAllReduce op(world, shape, options); }); };
    options.knobs = packed_knobs(8, 16, 2, 1, Type::fp32);
    if (refusal().find("divide N = 50") == std::string::npos) return 1;
    options.knobs.reset();
    options.strategy = Strategy::fused;
    if (refusal().find("packed with strategy fused") == std::string::npos) return 2;
    options.strategy.reset();
    shape.any_m = true;
    if (refusal().find("of any M") == std::string::npos) return 3;
    shape.any_m = false;
    shape.ldo = 60;
    if (refusal().find("with ldo") == std::string::npos) return 4;
    shape = {.m = 16, .n = 50, .k = 8, .type = Type::fp32, .packed = true};
    const std::string scatter = error_of([&] { GemmReduceScatter op(world, shape, options); });
    if (scatter.find("packed with gemm_reduce_scatter") == std::string::npos) return 5;
    shape.packed = false;
    GemmAllReduce rows(world, shape, options);
    return error_of([&] { static_cast<void>(rows.packed_layout()); }) ==
                   "packed_layout: gemm_all_reduce was made without `packed`"
               ? 0
               : 6;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex
