#include "plan/problem.hpp"

#include <type_traits>

#include "base/check.hpp"
#include "plan/json/names.hpp"
#include "plan/limits.hpp"

namespace imbrex {
namespace {

void expect_size(const char* name, std::int64_t value) {
  IMBREX_EXPECTS(value > 0 && value <= plan::most_extent, "{} = {}: it must be from 1 to {}", name, value,
                 plan::most_extent);
}

void expect_divides(const Problem& problem, const char* name, std::int64_t value) {
  IMBREX_EXPECTS(value % problem.ranks == 0, "{} = {} does not divide by {} ranks; {} splits it over the ranks", name,
                 value, problem.ranks, name_of(problem.op));
}

}  // namespace

void validate(const Problem& problem) {
  IMBREX_EXPECTS(problem.ranks >= 1 && problem.ranks <= max_ranks, "ranks = {}: it must be from 1 to {}", problem.ranks,
                 max_ranks);
  expect_size("M", problem.m);
  expect_size("N", problem.n);
  expect_size("K", problem.k);
  IMBREX_EXPECTS(problem.scales == Scales::none || problem.type == Type::e4m3,
                 "scales = {} with type {}: only e4m3 has scales", name_of(problem.scales), name_of(problem.type));
  IMBREX_EXPECTS(problem.b_layout == Layout::row_major || problem.b_layout == Layout::column_major,
                 "b_layout = {}: it must be row_major or column_major", plan::name_of(problem.b_layout));
  IMBREX_EXPECTS(problem.b_layout == Layout::row_major || problem.type != Type::e4m3,
                 "b_layout = column_major with type e4m3: B of e4m3 lies so always, and the default must stay");
  switch (problem.op) {
    case Operator::all_gather_gemm:
      expect_divides(problem, "M", problem.m);
      expect_divides(problem, "N", problem.n);
      return;
    case Operator::gemm_reduce_scatter:
      expect_divides(problem, "M", problem.m);
      expect_divides(problem, "K", problem.k);
      return;
    case Operator::gemm_all_reduce: expect_divides(problem, "K", problem.k); return;
    case Operator::gemm_all_to_all: expect_divides(problem, "M", problem.m); return;
  }
  IMBREX_EXPECTS(false, "operator {} does not exist", static_cast<std::underlying_type_t<Operator>>(problem.op));
}

RankShapes shapes_of(const Problem& problem) {
  const std::int64_t m = problem.m, n = problem.n, k = problem.k, r = problem.ranks;
  RankShapes shapes;
  switch (problem.op) {
    case Operator::all_gather_gemm: shapes = {{m / r, k}, {k, n / r}, {m, n / r}, {m, n / r}, k}; break;
    case Operator::gemm_reduce_scatter: shapes = {{m, k / r}, {k / r, n}, {m / r, n}, {m, n}, k / r}; break;
    case Operator::gemm_all_reduce: shapes = {{m, k / r}, {k / r, n}, {m, n}, {m, n}, k / r}; break;
    case Operator::gemm_all_to_all: shapes = {{m, k}, {k, n}, {m, n}, {m, n}, k}; break;
  }
  if (problem.scales == Scales::tensor) shapes.a_scale = shapes.b_scale = {1, 1};
  if (problem.scales == Scales::row) shapes.a_scale = {shapes.a.rows, 1}, shapes.b_scale = {1, shapes.b.cols};
  return shapes;
}

std::vector<OperandInfo> operands_of(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  const Type result = output_type(problem.type);
  const auto input = [](std::string_view name, Type type, const Extent& e, Layout layout = Layout::row_major) {
    return OperandInfo{name, OperandRole::input, type, e.rows, e.cols, layout};
  };
  std::vector<OperandInfo> all{input("a", problem.type, shapes.a),
                               input("b", problem.type, shapes.b, plan::layout_of_b(problem))};
  if (problem.bias) all.push_back(input("bias", result, {1, shapes.out.cols}));
  if (problem.scales != Scales::none) {
    all.push_back(input("a_scale", Type::fp32, shapes.a_scale));
    all.push_back(input("b_scale", Type::fp32, shapes.b_scale));
  }
  all.push_back({"out", OperandRole::output, result, shapes.out.rows, shapes.out.cols, Layout::row_major});
  return all;
}

double plan::shortening(const CodecPair& codec, Type type) {
  return (wire_bits(codec.reduce_scatter) + wire_bits(codec.all_gather)) / 2 / (8 * static_cast<double>(size_of(type)));
}

double plan::wire_bytes(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  const auto ranks = static_cast<double>(problem.ranks);
  const auto bytes = [](const Extent& e, Type type) {
    return static_cast<double>(e.rows) * static_cast<double>(e.cols) * static_cast<double>(size_of(type));
  };
  if (problem.op == Operator::all_gather_gemm) return (ranks - 1) * bytes(shapes.a, problem.type);
  const double ways = problem.op == Operator::gemm_all_reduce ? 2 : 1;
  return ways * (ranks - 1) / ranks * bytes(shapes.product, output_type(problem.type));
}

bool plan::owns_columns(const Problem& problem, const Knobs& knobs) {
  return problem.op == Operator::gemm_all_reduce && !knobs.one_shot && problem.m < problem.ranks * knobs.tile_m;
}

plan::ProductSize plan::product_of_rank(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  // Where each rank's A has a scale, in e4m3, ranks' rows are products of their own.
  const bool at_once = problem.op == Operator::all_gather_gemm && problem.scales != Scales::tensor;
  return {at_once ? problem.m : shapes.a.rows, shapes.b.cols, shapes.a.cols, problem.type, problem.b_layout};
}

}  // namespace imbrex
