// The bounds of the reference hold what they promise, and no more.
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/convert.hpp"
#include "ops/reference.hpp"

namespace imbrex {
namespace {

struct Sums {
  Plan plan;
  std::unique_ptr<OperandSource> operands;
};

Sums all_reduce(Strategy strategy, int ranks) {
  RunRequest request;
  request.problem = {Operator::gemm_all_reduce, 64, 64, 16 * ranks, ranks, Type::bf16};
  request.seed = 5;
  Knobs knobs;
  if (strategy == Strategy::fused) knobs.transport = Transport::store;
  Problem problem = request.problem;
  return {make_plan(problem, strategy, knobs), open_operands(request, problem)};
}

// A ring's sum: partial products, and each sum of two, rounded to bf16; ranks in an order of its own.
std::vector<float> ring_sum(const Sums& s) {
  const RankShapes shapes = shapes_of(s.plan.problem);
  const std::int64_t rows = shapes.out.rows, cols = shapes.out.cols;
  std::vector<int> order(static_cast<std::size_t>(s.plan.problem.ranks));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(3));
  const auto rounded = [](double v) { return bf16_to_float(float_to_bf16(static_cast<float>(v))); };
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

TEST(Reference, SumsInThePartialTypeHaveABoundOfTheirOwn) {
  const Sums s = all_reduce(Strategy::sequential, 32);
  const std::vector<float> sum = ring_sum(s);
  const auto error = [&](Device device) {
    return compare(reference_of(s.plan, *s.operands, 0, device), sum, Type::bf16, 64).worst;
  };
  EXPECT_LE(error(Device::cuda), 1);
  EXPECT_GT(error(Device::cpu), 1);
}

TEST(Reference, SumsInStagesAreRoundedBetweenThem) {
  Sums s = all_reduce(Strategy::sequential, 4);
  Knobs knobs;
  knobs.nodes = 2;
  s.plan = make_plan(s.plan.problem, Strategy::sequential, knobs);
  EXPECT_EQ(reference_of(s.plan, *s.operands, 0).bound, reference_of(s.plan, *s.operands, 0, Device::cuda).bound);
}

TEST(Reference, PlansWithoutSuchCollectivesKeepTheirBound) {
  const Sums s = all_reduce(Strategy::fused, 4);
  EXPECT_EQ(reference_of(s.plan, *s.operands, 0, Device::cuda).bound, reference_of(s.plan, *s.operands, 0).bound);
}

}  // namespace
}  // namespace imbrex
