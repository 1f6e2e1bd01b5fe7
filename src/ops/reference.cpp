#include "ops/reference.hpp"

#include <cblas.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace imbrex {
namespace {

double half_denormal(Type type) { return type == Type::fp16 ? 0x1p-25 : type == Type::bf16 ? 0x1p-134 : 0x1p-150; }

double largest(Type type) {
  return type == Type::fp16   ? 65504.0
         : type == Type::bf16 ? 0x1.fep127
                              : static_cast<double>(std::numeric_limits<float>::max());
}

std::vector<double> widened(const std::vector<float>& values, bool absolute) {
  std::vector<double> wide(values.size());
  std::transform(values.begin(), values.end(), wide.begin(),
                 [&](float v) { return absolute ? std::abs(static_cast<double>(v)) : static_cast<double>(v); });
  return wide;
}

struct Product {
  std::int64_t rows, cols, depth;
  // result = beta * result + A B for rows row0.. of A
  void operator()(const std::vector<double>& a, std::int64_t row0, const std::vector<double>& b, double* result) const {
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, static_cast<int>(rows), static_cast<int>(cols),
                static_cast<int>(depth), 1.0, a.data() + row0 * depth, static_cast<int>(depth), b.data(),
                static_cast<int>(cols), 1.0, result, static_cast<int>(cols));
  }
};

enum class Adding : std::uint8_t { tasks, collective, stages };

Adding adding_of(const Plan& plan) {
  for (const Queue& queue : plan.ranks.front().queues)
    for (const Task& task : queue.tasks)
      if (const auto* c = std::get_if<Collective>(&task.work);
          c != nullptr && (c->kind == CollectiveKind::reduce_scatter || c->kind == CollectiveKind::all_reduce))
        return c->ranks.empty() ? Adding::collective : Adding::stages;
  return Adding::tasks;
}

}  // namespace

Reference reference_of(const Plan& plan, const OperandSource& operands, int rank, CollectiveSums collective_sums) {
  const Problem& problem = plan.problem;
  const RankShapes shapes = shapes_of(problem);
  const std::int64_t cols = shapes.out.cols, out_rows = shapes.out.rows, ranks = problem.ranks;
  const auto count = static_cast<std::size_t>(out_rows * cols);
  Reference ref{std::vector<double>(count), std::vector<double>(count)};
  std::vector<double> absolute(count), partials(count), partial;
  const bool gather = problem.op == Operator::all_gather_gemm, exchange = problem.op == Operator::gemm_all_to_all;
  std::vector<float> b;
  for (int source = 0; source < problem.ranks; ++source) {
    // Where this source's contribution lies in the output, and which rows of its A it comes from.
    const std::int64_t rows = gather ? shapes.a.rows : exchange ? out_rows / ranks : out_rows;
    const std::int64_t out_row = gather || exchange ? source * rows : 0;
    const std::int64_t a_row = exchange ? rank * rows : problem.op == Operator::gemm_reduce_scatter ? rank * rows : 0;
    const std::vector<float> a = operands.part_as_float(true, source);
    if (!gather || source == 0) b = operands.part_as_float(false, gather ? rank : source);
    const Product product{rows, cols, shapes.depth};
    partial.assign(static_cast<std::size_t>(rows * cols), 0.0);
    product(widened(a, false), a_row, widened(b, false), partial.data());
    product(widened(a, true), a_row, widened(b, true), absolute.data() + out_row * cols);
    for (std::size_t i = 0; i < partial.size(); ++i) {
      const std::size_t at = static_cast<std::size_t>(out_row * cols) + i;
      ref.value[at] += partial[i];
      partials[at] += std::abs(partial[i]);
    }
  }
  const bool sums = !gather && !exchange && ranks > 1;
  const int slices = std::max(plan.knobs.k_slices, 1);
  const double n = static_cast<double>(problem.k + ranks + slices + 2), u = 0x1p-24, g = n * u / (1 - n * u);
  const Adding adding = adding_of(plan);
  const bool in_partial_type =
      adding == Adding::stages || (adding == Adding::collective && collective_sums == CollectiveSums::partial_type);
  const double u_out = unit_roundoff(problem.type), roundings = in_partial_type ? static_cast<double>(ranks) : 1,
               u_partial = roundings * unit_roundoff(plan.knobs.partial),
               g_partial = in_partial_type ? u_partial / (1 - u_partial) : u_partial;
  for (std::size_t i = 0; i < count; ++i) {
    const double accumulated = g * absolute[i];
    const double rounded =
        sums ? g_partial * (partials[i] + accumulated) + static_cast<double>(ranks) * half_denormal(plan.knobs.partial)
             : 0;
    ref.bound[i] =
        accumulated + rounded + u_out * (std::abs(ref.value[i]) + accumulated + rounded) + half_denormal(problem.type);
  }
  return ref;
}

Comparison compare(const Reference& reference, const std::vector<float>& result, Type type, std::int64_t cols) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Comparison worst;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double value = reference.value[i], bound = reference.bound[i], got = static_cast<double>(result[i]);
    double ratio = 0;
    if (std::isnan(value))
      ratio = std::isnan(got) ? 0 : infinity;
    else if (std::isinf(got))
      ratio = std::signbit(got) == std::signbit(value) && std::abs(value) + bound >= largest(type) ? 0 : infinity;
    else if (std::isnan(got) || std::isinf(value))
      ratio = infinity;
    else
      ratio = std::abs(got - value) / bound;
    if (ratio > worst.worst || (i == 0 && ratio >= worst.worst)) {
      const auto at = static_cast<std::int64_t>(i);
      worst = {ratio, at / cols, at % cols, got, value};
    }
  }
  return worst;
}

}  // namespace imbrex
