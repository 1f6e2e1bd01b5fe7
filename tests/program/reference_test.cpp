// The bounds of the reference hold what they promise, and no more.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "base/convert.hpp"
#include "program/reference.hpp"

namespace imbrex {
namespace {

struct Sums {
  Plan plan;
  std::unique_ptr<program::OperandSource> operands;
};

Sums all_reduce(Strategy strategy, int ranks) {
  program::RunRequest request;
  request.problem = {Operator::gemm_all_reduce, 64, 64, 16 * ranks, ranks, Type::bf16};
  request.seed = 5;
  Knobs knobs;
  if (strategy == Strategy::fused) knobs.transport = Transport::store;
  Problem problem = request.problem;
  return {make_plan(problem, strategy, knobs), program::open_operands(request, problem)};
}

// A ring's sum: partial products, and each sum of two, rounded to bf16; ranks in an order of its own.
std::vector<float> ring_sum(const Sums& s) {
  const RankShapes shapes = shapes_of(s.plan.problem);
  const std::int64_t rows = shapes.out.rows, cols = shapes.out.cols;
  std::vector<int> order(static_cast<std::size_t>(s.plan.problem.ranks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(3));
  const auto rounded = [](double v) { return base::bf16_to_float(base::float_to_bf16(static_cast<float>(v))); };
  std::vector<float> sum;
  for (const int rank : order) {
    const auto a = s.operands->part_as_float(true, rank), b = s.operands->part_as_float(false, rank);
    const bool first = sum.empty();
    sum.resize(static_cast<std::size_t>(rows * cols));
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < cols; ++j) {
        double product = 0;
        for (std::int64_t k = 0; k < shapes.depth; ++k)
          product += static_cast<double>(a[static_cast<std::size_t>(i * shapes.depth + k)]) *
                     static_cast<double>(b[static_cast<std::size_t>(k * cols + j)]);
        float& total = sum[static_cast<std::size_t>(i * cols + j)];
        total = first ? rounded(product) : rounded(static_cast<double>(total) + static_cast<double>(rounded(product)));
      }
  }
  return sum;
}

// They say nothing of what runs. A K of 16 is cut into 16 slices at most.
TEST(Reference, KnobsDoNotWidenTheBound) {
  for (const Strategy strategy : {Strategy::fused, Strategy::sequential}) {
    Sums s = all_reduce(strategy, 2);
    const auto bounds = [&](int slices, Type partial) {
      s.plan.knobs.k_slices = slices;
      s.plan.knobs.partial = partial;
      return program::reference_of(s.plan, *s.operands, 0, Device::cpu).bound;
    };
    EXPECT_EQ(bounds(std::numeric_limits<int>::max(), Type::bf16), bounds(16, Type::bf16));
    EXPECT_EQ(bounds(1, Type::e4m3), bounds(1, Type::bf16));
    EXPECT_EQ(bounds(1, Type::fp32), bounds(1, Type::bf16));
  }
}

TEST(Reference, SumsInThePartialTypeHaveABoundOfTheirOwn) {
  const Sums s = all_reduce(Strategy::sequential, 32);
  const std::vector<float> sum = ring_sum(s);
  const auto error = [&](Device device) {
    return program::compare(program::reference_of(s.plan, *s.operands, 0, device), sum, Type::bf16, 64).worst;
  };
  EXPECT_LE(error(Device::cuda), 1);
  EXPECT_GT(error(Device::cpu), 1);
}

TEST(Reference, SumsInStagesAreRoundedBetweenThem) {
  Sums s = all_reduce(Strategy::sequential, 4);
  Knobs knobs;
  knobs.nodes = 2;
  s.plan = make_plan(s.plan.problem, Strategy::sequential, knobs);
  EXPECT_EQ(program::reference_of(s.plan, *s.operands, 0).bound,
            program::reference_of(s.plan, *s.operands, 0, Device::cuda).bound);
}

TEST(Reference, PlansWithoutSuchCollectivesKeepTheirBound) {
  const Sums s = all_reduce(Strategy::fused, 4);
  EXPECT_EQ(program::reference_of(s.plan, *s.operands, 0, Device::cuda).bound,
            program::reference_of(s.plan, *s.operands, 0).bound);
}

// Strategies store split-K parts in fp32; other plans need not.
TEST(Reference, NarrowPartsOfKHaveABoundOfTheirOwn) {
  program::RunRequest request;
  request.problem = {Operator::gemm_all_reduce, 32, 16, 512, 2, Type::bf16};
  request.seed = 5;
  Problem problem = request.problem;
  const auto operands = program::open_operands(request, problem);
  const auto bound = [&](int split_k, Type parts) {
    Plan plan = make_plan(problem, Strategy::fused, {.transport = Transport::store, .split_k = split_k});
    for (Buffer& buffer : plan.buffers)
      if (buffer.name == "parts") buffer.type = parts;
    EXPECT_FALSE(check(plan).has_value());
    return program::reference_of(plan, *operands, 0).bound.front();
  };
  const double whole = bound(1, Type::fp32), cut = bound(2, Type::fp32), narrow = bound(2, Type::bf16);
  EXPECT_NEAR(cut, whole, whole * 1e-3);
  EXPECT_GT(narrow, 1.5 * cut);
  EXPECT_GT(narrow, bound(2, Type::fp16));
}

// A WGMMA instruction of Hopper's for 8-bit floats: products and the sum so far aligned to the largest, cut off behind
// 13 bits, and added; a new sum every 128 of K.
float sum_of_instructions(const std::vector<float>& a, std::int64_t row, const std::vector<float>& b, std::int64_t col,
                          const RankShapes& shapes) {
  double total = 0;
  for (std::int64_t k = 0; k < shapes.depth; k += 128) {
    double sum = 0;
    for (std::int64_t at = k; at < std::min(k + 128, shapes.depth); at += 32) {
      std::vector<double> terms{sum};
      for (std::int64_t i = at; i < std::min(at + 32, shapes.depth); ++i)
        terms.push_back(static_cast<double>(a[static_cast<std::size_t>(row * shapes.depth + i)]) *
                        static_cast<double>(b[static_cast<std::size_t>(i * shapes.b.cols + col)]));
      double most = 0;
      for (const double t : terms) most = std::max(most, std::abs(t));
      const double unit = most == 0 ? 1 : std::exp2(std::floor(std::log2(most)) - 13);
      sum = 0;
      for (const double t : terms) sum += std::trunc(t / unit) * unit;
    }
    total += sum;
  }
  return static_cast<float>(total);
}

TEST(Reference, HoppersSumsOfE4m3HaveABoundOfTheirOwn) {
  program::RunRequest request;
  request.problem = {Operator::gemm_reduce_scatter, 48, 40, 2048, 1, Type::e4m3, false, Scales::row};
  Problem problem = request.problem;
  const auto operands = program::open_operands(request, problem);
  const Plan plan = make_plan(problem, Strategy::fused, {});
  const RankShapes shapes = shapes_of(problem);
  const auto a = operands->part_as_float(true, 0), b = operands->part_as_float(false, 0);
  const auto a_scale = operands->scales(true, 0), b_scale = operands->scales(false, 0);
  std::vector<float> result;
  double worst = 0;
  const program::Reference hopper = program::reference_of(plan, *operands, 0, Device::cuda),
                           fp32 = program::reference_of(plan, *operands, 0);
  for (std::int64_t i = 0; i < 48; ++i)
    for (std::int64_t j = 0; j < 40; ++j) {
      const float sum = sum_of_instructions(a, i, b, j, shapes) * a_scale[static_cast<std::size_t>(i)] *
                        b_scale[static_cast<std::size_t>(j)];
      const auto at = static_cast<std::size_t>(i * 40 + j);
      // Before it is rounded to bf16, whose error hides the others: beyond fp32's bound, within Hopper's.
      worst = std::max(
          worst, std::abs(static_cast<double>(sum) - fp32.value[at]) / (0x1p-24 * 2048 * std::abs(fp32.value[at])));
      result.push_back(base::bf16_to_float(base::float_to_bf16(sum)));
    }
  EXPECT_GT(worst, 1);
  const program::Comparison c = program::compare(hopper, result, Type::bf16, 40);
  EXPECT_LE(c.worst, 1);
  // 128 of K too few are out of it.
  std::vector<float> short_b = b;
  std::fill(short_b.begin() + 1024 * 40, short_b.begin() + 1152 * 40, 0.0f);
  for (std::int64_t i = 0; i < 48; ++i)
    for (std::int64_t j = 0; j < 40; ++j)
      result[static_cast<std::size_t>(i * 40 + j)] = base::bf16_to_float(
          base::float_to_bf16(sum_of_instructions(a, i, short_b, j, shapes) * a_scale[static_cast<std::size_t>(i)] *
                              b_scale[static_cast<std::size_t>(j)]));
  EXPECT_GT(program::compare(hopper, result, Type::bf16, 40).worst, 1);
}

struct Case {
  Problem problem;
  Device device = Device::cpu;
};

// Each operator, with what changes the arithmetic: scales, a bias, a further B.
std::vector<Case> cases_of_rows() {
  std::vector<Case> cases;
  for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                            Operator::gemm_all_to_all}) {
    cases.push_back({{op, 48, 600, 128, 2, Type::bf16, true}});
    cases.push_back({{op, 48, 40, 128, 2, Type::e4m3, false, Scales::row}, Device::cuda});
  }
  cases.push_back({{Operator::all_gather_gemm, 48, 40, 128, 2, Type::fp32}});
  cases.back().problem.more_n[0] = 24;
  return cases;
}

TEST(Reference, OfSomeRowsIsThatOfAllRowsThere) {
  for (const auto& [asked, device] : cases_of_rows()) {
    program::RunRequest request;
    request.problem = asked;
    Problem problem = asked;
    const auto operands = program::open_operands(request, problem);
    const Plan plan = make_plan(problem, Strategy::sequential, {});
    const std::int64_t out_rows = shapes_of(problem).out.rows;
    for (int product = 0; product < (asked.more_n[0] > 0 ? 2 : 1); ++product)
      for (int rank = 0; rank < problem.ranks; ++rank) {
        const auto rows = program::compared_rows(out_rows, 5, 3, rank);
        const auto some = program::reference_of(plan, *operands, rank, device, product, &rows);
        const auto whole = program::reference_of(plan, *operands, rank, device, product);
        const std::size_t cols = whole.value.size() / static_cast<std::size_t>(out_rows);
        ASSERT_EQ(some.value.size(), rows.size() * cols);
        ASSERT_EQ(some.bound.size(), some.value.size());
        for (std::size_t i = 0; i < some.value.size(); ++i) {
          const std::size_t at = static_cast<std::size_t>(rows[i / cols]) * cols + i % cols;
          // The BLAS may add up in another order where it has fewer rows.
          ASSERT_NEAR(some.value[i], whole.value[at], 1e-12 * 128) << name_of(problem.op) << " rank " << rank;
          ASSERT_NEAR(some.bound[i], whole.bound[at], 1e-9 * whole.bound[at]) << name_of(problem.op);
        }
      }
  }
}

TEST(ComparedRows, AreOneOfEachStretchAndWhatTheSeedSays) {
  const auto rows = program::compared_rows(1000, 14, 7, 2);
  ASSERT_EQ(rows.size(), 72u);  // the last stretch has six rows
  for (std::size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(rows[i] / 14, static_cast<std::int64_t>(i));
  EXPECT_LT(rows.back(), 1000);
  EXPECT_EQ(rows, program::compared_rows(1000, 14, 7, 2));
  EXPECT_NE(rows, program::compared_rows(1000, 14, 8, 2));
  EXPECT_NE(rows, program::compared_rows(1000, 14, 7, 3));
  std::vector<std::int64_t> all(1000);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(program::compared_rows(1000, 1, 7, 2), all);
  // Each row has its turn.
  std::set<std::int64_t> drawn;
  for (std::uint64_t seed = 0; seed < 200; ++seed) drawn.insert(program::compared_rows(14, 14, seed, 0).front());
  EXPECT_EQ(drawn.size(), 14u);
}

TEST(ComparedRows, AreAllUnlessThatTakesLong) {
  const auto stride = [](std::int64_t m, std::int64_t n, std::int64_t k, Knobs knobs = {}) {
    return program::compared_stride(
        make_plan({Operator::gemm_reduce_scatter, m, n, k, 4, Type::bf16}, Strategy::sequential, knobs));
  };
  EXPECT_EQ(stride(512, 512, 2048), 1);
  EXPECT_EQ(stride(4096, 4096, 4096), 1);  // 2^34 multiplications of each rank
  EXPECT_EQ(stride(4096, 4096, 4100), 2);
  EXPECT_EQ(stride(4096, 8192, 28672), 14);
  EXPECT_EQ(stride(65536, 65536, 65536), 32);  // a tile of 64 rows still holds one
  Knobs quantized;
  quantized.codec = parse_codec_pair("int8");
  EXPECT_EQ(stride(4096, 8192, 28672, quantized), 1);
}

// What a run that compares some rows finds, and what it does not.
TEST(ComparedRows, FindAnErrorInADrawnRowAndAnyInEnoughAdjacentOnes) {
  const Sums s = all_reduce(Strategy::sequential, 2);
  constexpr std::int64_t cols = 64, stride = 8;
  const auto rows = program::compared_rows(64, stride, 11, 0);
  const auto reference = program::reference_of(s.plan, *s.operands, 0, Device::cpu, 0, &rows);
  const std::vector<float> right = ring_sum(s);
  const auto worst = [&](const std::vector<std::int64_t>& wrong) {
    std::vector<float> result = right;
    for (const std::int64_t row : wrong) result[static_cast<std::size_t>(row * cols + row % cols)] += 1;
    return program::compare(reference, result, Type::bf16, cols, rows);
  };
  EXPECT_LE(worst({}).worst, 1);
  for (const std::int64_t row : rows) {
    EXPECT_GT(worst({row}).worst, 1) << row;
    EXPECT_EQ(worst({row}).row, row);
    EXPECT_EQ(worst({row}).col, row % cols);
  }
  int missed = 0;
  for (std::int64_t row = 0; row < 64; ++row) missed += worst({row}).worst <= 1 ? 1 : 0;
  EXPECT_EQ(missed, 64 - 64 / stride);
  for (std::int64_t first = 0; first + 2 * stride - 1 <= 64; ++first) {
    std::vector<std::int64_t> adjacent(2 * stride - 1);
    std::iota(adjacent.begin(), adjacent.end(), first);
    EXPECT_GT(worst(adjacent).worst, 1) << first;
  }
}

// An infinity in an operand makes a bound that is infinite, or none at all.
TEST(Reference, InfinitiesAndNaNsAreRightWhereTheyMustBe) {
  constexpr double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  const auto over = [](double result, double value, double bound, Type type = Type::fp32) {
    return program::error_over_bound(result, value, bound, type);
  };
  for (const double bound : {0.0, 1.0, inf, nan}) {
    EXPECT_EQ(over(inf, inf, bound), 0) << bound;
    EXPECT_EQ(over(-inf, -inf, bound), 0) << bound;
    EXPECT_EQ(over(nan, nan, bound), 0) << bound;
    EXPECT_EQ(over(-inf, inf, bound), inf) << bound;
    EXPECT_EQ(over(1, inf, bound), inf) << bound;
    EXPECT_EQ(over(nan, inf, bound), inf) << bound;
    EXPECT_EQ(over(nan, 1, bound), inf) << bound;
    EXPECT_EQ(over(1, nan, bound), inf) << bound;
  }
  EXPECT_EQ(over(inf, 1, 1), inf);
  EXPECT_EQ(over(inf, 1e39, 1), 0);  // beyond the type
  EXPECT_EQ(over(inf, 7e4, 1, Type::fp16), 0);
  EXPECT_EQ(over(-inf, 1e39, 1), inf);
  EXPECT_EQ(over(3, 1, 4), 0.5);
  EXPECT_EQ(over(3, 1, 0), inf);
}

}  // namespace
}  // namespace imbrex
