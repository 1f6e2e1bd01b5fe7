#include "plan/problem.hpp"

#include <algorithm>
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

// What only all_gather_gemm has.
void validate_gather(const Problem& problem) {
  const bool gather = problem.op == Operator::all_gather_gemm;
  IMBREX_EXPECTS(gather || !problem.gathered_a, "gathered_a with {}: only all_gather_gemm gathers A",
                 name_of(problem.op));
  std::int64_t total = problem.n, before = problem.n;
  for (const std::int64_t n : problem.more_n) {
    IMBREX_EXPECTS(n == 0 || gather, "more_n holds {} with {}: only all_gather_gemm multiplies by several B", n,
                   name_of(problem.op));
    IMBREX_EXPECTS(n >= 0 && n <= plan::most_extent,
                   "more_n holds {}: N of a further B must be from 1 to {}, or 0 where there is none", n,
                   plan::most_extent);
    IMBREX_EXPECTS(n == 0 || before > 0, "more_n = {}, {}: there is a third B without a second one", before, n);
    IMBREX_EXPECTS(n == 0 || problem.scales == Scales::none,
                   "more_n holds {} with scales {}: several B of one A must have none", n, name_of(problem.scales));
    expect_divides(problem, "more_n", n);
    total += before = n;
  }
  IMBREX_EXPECTS(total <= plan::most_extent, "N and more_n are {} together: they may be {}", total, plan::most_extent);
}

// Leading dimensions; the sizes are right.
void validate_pitches(const Problem& problem) {
  const auto expect = [](const char* name, std::int64_t value, const OperandInfo& info) {
    IMBREX_EXPECTS(value == 0 || (value >= info.length() && value <= plan::most_extent),
                   "{} = {}: it must be 0, or from {}, the elements of a row of {}, to {}", name, value, info.length(),
                   info.name, plan::most_extent);
    IMBREX_EXPECTS(value == 0 || info.lines() <= plan::most_bytes / 4 / value,
                   "{} = {}: {} rows of {} so far apart are larger than 2^46 bytes", name, value, info.lines(),
                   info.name);
  };
  for (std::size_t i = 0; i < problem.more_n.size(); ++i) {
    IMBREX_EXPECTS(problem.more_n[i] > 0 || problem.more_ldb[i] == 0,
                   "more_ldb holds {} where more_n holds 0: it must be 0 where there is no further B",
                   problem.more_ldb[i]);
    IMBREX_EXPECTS(problem.more_n[i] > 0 || problem.more_ldo[i] == 0,
                   "more_ldo holds {} where more_n holds 0: it must be 0 where there is no further B",
                   problem.more_ldo[i]);
  }
  for (const OperandInfo& info : operands_of(problem)) {
    if (info.name == "a") expect("lda", problem.lda, info);
    for (int product = 0; product < plan::count_products(problem); ++product) {
      if (info.name == plan::name_of_b(product))
        expect(product == 0 ? "ldb" : "more_ldb", plan::ldb_of(problem, product), info);
      if (info.name == plan::name_of_out(product))
        expect(product == 0 ? "ldo" : "more_ldo", plan::ldo_of(problem, product), info);
    }
  }
}

void validate_packed(const Problem& problem) {
  const auto& [rows, cols] = problem.packed;
  if (rows == 0 && cols == 0) return;
  IMBREX_EXPECTS(problem.op == Operator::gemm_all_reduce,
                 "packed = {} x {} with {}: only gemm_all_reduce leaves its output packed", rows, cols,
                 name_of(problem.op));
  IMBREX_EXPECTS(rows > 0 && rows <= plan::most_extent && cols > 0 && problem.n % cols == 0,
                 "packed = {} x {}: the rows of a block must be from 1 to {}, and its columns divide N = {}", rows,
                 cols, plan::most_extent, problem.n);
  IMBREX_EXPECTS(problem.ldo == 0, "ldo = {} with a packed output, which lies without gaps: it must be 0", problem.ldo);
  IMBREX_EXPECTS(problem.n / cols <= plan::most_extent / problem.m,
                 "packed = {} x {}: the {} blocks beside each other of M = {} are more than {} rows", rows, cols,
                 problem.n / cols, problem.m, plan::most_extent);
}

void validate_sizes(const Problem& problem) {
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
  validate_gather(problem);
  validate_sizes(problem);
  validate_packed(problem);
  validate_pitches(problem);
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
  for (int product = 1; product < plan::count_products(problem); ++product)
    shapes.product.cols += plan::cols_of(problem, product);
  if (problem.scales == Scales::tensor) shapes.a_scale = shapes.b_scale = {1, 1};
  if (problem.scales == Scales::row) shapes.a_scale = {shapes.a.rows, 1}, shapes.b_scale = {1, shapes.b.cols};
  return shapes;
}

std::vector<OperandInfo> operands_of(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  const Type result = output_type(problem.type);
  const auto input = [](std::string_view name, Type type, const Extent& e) {
    return OperandInfo{name, OperandRole::input, type, e.rows, e.cols};
  };
  const auto b = [&](int product, const Extent& e) {
    OperandInfo info = input(plan::name_of_b(product), problem.type, e);
    info.layout = plan::layout_of_b(problem);
    info.pitch = plan::ldb_of(problem, product);
    return info;
  };
  std::vector<OperandInfo> all{input("a", problem.type, shapes.a), b(0, shapes.b)};
  all.front().pitch = problem.lda;
  if (problem.bias) all.push_back(input("bias", result, {1, shapes.out.cols}));
  if (problem.scales != Scales::none) {
    all.push_back(input("a_scale", Type::fp32, shapes.a_scale));
    all.push_back(input("b_scale", Type::fp32, shapes.b_scale));
  }
  const auto output = [&](std::string_view name, Type type, const Extent& e, std::int64_t pitch) {
    all.push_back({name, OperandRole::output, type, e.rows, e.cols, Layout::row_major, pitch});
  };
  output("out", result, plan::is_packed(problem) ? plan::packed_extent(problem) : shapes.out, problem.ldo);
  for (int product = 1; product < plan::count_products(problem); ++product) {
    const std::int64_t cols = plan::cols_of(problem, product);
    all.push_back(b(product, {shapes.b.rows, cols}));
    if (problem.bias) all.push_back(input(plan::name_of_bias(product), result, {1, cols}));
    output(plan::name_of_out(product), result, {shapes.out.rows, cols}, plan::ldo_of(problem, product));
  }
  if (problem.gathered_a) output("gathered", problem.type, {problem.m, problem.k}, 0);
  return all;
}

Extent plan::packed_extent(const Problem& problem) {
  return {problem.m * (problem.n / problem.packed.cols), problem.packed.cols};
}

std::int64_t plan::packed_row(const Problem& problem, std::int64_t row, std::int64_t col) {
  const auto& [rows, cols] = problem.packed;
  const std::int64_t begin = row / rows * rows;
  return begin * (problem.n / cols) + col / cols * std::min(rows, problem.m - begin) + row - begin;
}

plan::PackedPlace plan::packed_place(const Problem& problem, std::int64_t packed_row) {
  const auto& [rows, cols] = problem.packed;
  const std::int64_t across = problem.n / cols, begin = packed_row / (rows * across) * rows;
  const std::int64_t high = std::min(rows, problem.m - begin), behind = packed_row - begin * across;
  return {begin + behind % high, behind / high * cols, packed_row - behind % high + high};
}

Problem plan::without_gaps(Problem problem) {
  problem.lda = problem.ldb = problem.ldo = 0;
  problem.more_ldb = problem.more_ldo = {};
  return problem;
}

double plan::shortening(const CodecPair& codec, Type type) {
  return (wire_bits(codec.reduce_scatter) + wire_bits(codec.all_gather)) / 2 / (8 * static_cast<double>(size_of(type)));
}

std::int64_t plan::first_col_of(const Problem& problem, int product, int rank) {
  std::int64_t first = problem.op == Operator::all_gather_gemm ? rank * cols_of(problem, product) : 0;
  for (int before = 0; before < product; ++before) first += n_of(problem, before);
  return first;
}

namespace {

constexpr std::string_view names[][max_products] = {
    {"b", "b1", "b2"}, {"bias", "bias1", "bias2"}, {"out", "out1", "out2"}};

}  // namespace

std::string_view plan::name_of_b(int product) { return names[0][product]; }
std::string_view plan::name_of_bias(int product) { return names[1][product]; }
std::string_view plan::name_of_out(int product) { return names[2][product]; }

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
  // Where each rank's A has a scale, in e4m3, ranks' rows are products of their own. Several B: the first one's.
  const bool at_once = problem.op == Operator::all_gather_gemm && problem.scales != Scales::tensor;
  return {at_once ? problem.m : shapes.a.rows, shapes.b.cols, shapes.a.cols, problem.type, problem.b_layout};
}

}  // namespace imbrex
