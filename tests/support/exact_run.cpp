#include "support/exact_run.hpp"

namespace imbrex::test {
namespace {

// Small integers multiply and add up exactly in fp32.
float operand(bool a, std::int64_t row, std::int64_t col, std::uint64_t epoch) {
  const auto mix = static_cast<std::uint64_t>(row * 7 + col * 13 + (a ? 3 : 5)) + epoch * 11;
  return static_cast<float>(static_cast<std::int64_t>(mix % 9) - 4);
}

struct Whole {
  const Problem& problem;
  std::uint64_t epoch;

  // Element of a rank's operand, by the whole problem's coordinates.
  float a(int rank, std::int64_t row, std::int64_t col) const {
    const RankShapes s = shapes_of(problem);
    if (problem.op == Operator::all_gather_gemm) return operand(true, rank * s.a.rows + row, col, epoch);
    return operand(true, row, rank * s.depth + col, epoch);
  }
  float b(int rank, std::int64_t row, std::int64_t col) const {
    const RankShapes s = shapes_of(problem);
    if (problem.op == Operator::all_gather_gemm) return operand(false, row, rank * s.b.cols + col, epoch);
    return operand(false, rank * s.depth + row, col, epoch);
  }
  float bias(int rank, std::int64_t col) const {
    if (!problem.bias) return 0;
    if (problem.op == Operator::all_gather_gemm)
      return operand(true, -1, rank * shapes_of(problem).out.cols + col, epoch);
    return operand(true, problem.op == Operator::gemm_all_to_all ? -1 - rank : -1, col, epoch);
  }
  float product(int rank, std::int64_t row, std::int64_t col) const {
    float sum = 0;
    for (std::int64_t k = 0; k < shapes_of(problem).depth; ++k) sum += a(rank, row, k) * b(rank, k, col);
    return sum;
  }
  float out(int rank, std::int64_t row, std::int64_t col) const {
    const RankShapes s = shapes_of(problem);
    float sum = problem.op == Operator::gemm_all_to_all ? 0 : bias(rank, col);
    switch (problem.op) {
      case Operator::all_gather_gemm:
        for (std::int64_t k = 0; k < s.depth; ++k)
          sum += a(static_cast<int>(row / s.a.rows), row % s.a.rows, k) * b(rank, k, col);
        return sum;
      case Operator::gemm_all_to_all: {
        const std::int64_t block = s.out.rows / problem.ranks;
        return product(static_cast<int>(row / block), rank * block + row % block, col) +
               bias(static_cast<int>(row / block), col);
      }
      default:
        for (int source = 0; source < problem.ranks; ++source)
          sum += product(source, problem.op == Operator::gemm_reduce_scatter ? rank * s.out.rows + row : row, col);
        return sum;
    }
  }
};

}  // namespace

int run_exact(World& world, const Plan& plan, const CpuOptions& options, int epochs) {
  const auto executor = make_cpu_executor(world, options);
  const auto execution = executor->prepare(plan);
  const RankShapes s = shapes_of(plan.problem);
  std::vector<float> a(static_cast<std::size_t>(s.a.rows * s.a.cols)), b(static_cast<std::size_t>(s.b.rows * s.b.cols));
  std::vector<float> bias(static_cast<std::size_t>(plan.problem.bias ? s.out.cols : 0));
  std::vector<float> out(static_cast<std::size_t>(s.out.rows * s.out.cols));
  int wrong = 0;
  for (int e = 0; e < epochs; ++e) {
    const Whole whole{plan.problem, static_cast<std::uint64_t>(e)};
    for (std::size_t i = 0; i < a.size(); ++i)
      a[i] = whole.a(world.rank(), static_cast<std::int64_t>(i) / s.a.cols, static_cast<std::int64_t>(i) % s.a.cols);
    for (std::size_t i = 0; i < b.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      b[i] = plan.problem.b_layout == Layout::column_major ? whole.b(world.rank(), at % s.b.rows, at / s.b.rows)
                                                           : whole.b(world.rank(), at / s.b.cols, at % s.b.cols);
    }
    for (std::size_t i = 0; i < bias.size(); ++i) bias[i] = whole.bias(world.rank(), static_cast<std::int64_t>(i));
    execution->run({a.data(), b.data(), out.data(), bias.empty() ? nullptr : bias.data()});
    for (std::size_t i = 0; i < out.size(); ++i)
      wrong += out[i] != whole.out(world.rank(), static_cast<std::int64_t>(i) / s.out.cols,
                                   static_cast<std::int64_t>(i) % s.out.cols);
    std::fill(out.begin(), out.end(), -1.0f);
  }
  return wrong == 0 ? 0 : 1;
}

}  // namespace imbrex::test
