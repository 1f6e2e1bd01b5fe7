// The four operators that multiply matrices.
#include "problem/products.hpp"

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "problem/limits.hpp"

namespace imbrex::problem {
namespace {

constexpr std::string_view names[][max_products] = {
    {"b", "b1", "b2"}, {"bias", "bias1", "bias2"}, {"out", "out1", "out2"}};

bool gathers(const Problem& problem) { return problem.op == Operator::all_gather_gemm; }

// What only all_gather_gemm has.
void validate_gather(const Problem& problem) {
  const bool several = descriptor_of(problem.op).several_b;
  IMBREX_EXPECTS(several || !problem.gathered_a, "gathered_a with {}: only all_gather_gemm gathers A",
                 name_of(problem.op));
  std::int64_t total = problem.n, before = problem.n;
  for (const std::int64_t n : problem.more_n) {
    IMBREX_EXPECTS(n == 0 || several, "more_n holds {} with {}: only all_gather_gemm multiplies by several B", n,
                   name_of(problem.op));
    IMBREX_EXPECTS(n >= 0 && n <= most_extent,
                   "more_n holds {}: N of a further B must be from 1 to {}, or 0 where there is none", n, most_extent);
    IMBREX_EXPECTS(n == 0 || before > 0, "more_n = {}, {}: there is a third B without a second one", before, n);
    IMBREX_EXPECTS(n == 0 || problem.scales == Scales::none,
                   "more_n holds {} with scales {}: several B of one A must have none", n, name_of(problem.scales));
    expect_divides(problem, "more_n", n);
    total += before = n;
  }
  IMBREX_EXPECTS(total <= most_extent, "N and more_n are {} together: they may be {}", total, most_extent);
}

bool has_gaps(const Problem& problem) {
  const auto some = [](const auto& all) {
    return std::any_of(all.begin(), all.end(), [](auto ld) { return ld != 0; });
  };
  return problem.lda != 0 || problem.ldb != 0 || problem.ldo != 0 || some(problem.more_ldb) || some(problem.more_ldo);
}

// Leading dimensions; the sizes are right.
void validate_pitches(const Problem& problem) {
  const auto expect = [](const char* name, std::int64_t value, const OperandInfo& info) {
    IMBREX_EXPECTS(value == 0 || (value >= info.length() && value <= most_extent),
                   "{} = {}: it must be 0, or from {}, the elements of a row of {}, to {}", name, value, info.length(),
                   info.name, most_extent);
    IMBREX_EXPECTS(value == 0 || info.lines() <= most_bytes / 4 / value,
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
  // Most problems have none, and are validated where calls are counted in microseconds.
  if (!has_gaps(problem)) return;
  for (const OperandInfo& info : operands_of(problem)) {
    if (info.name == "a") expect("lda", problem.lda, info);
    for (int product = 0; product < count_products(problem); ++product) {
      if (info.name == name_of_b(product)) expect(product == 0 ? "ldb" : "more_ldb", ldb_of(problem, product), info);
      if (info.name == name_of_out(product)) expect(product == 0 ? "ldo" : "more_ldo", ldo_of(problem, product), info);
    }
  }
}

void validate_packed(const Problem& problem) {
  const auto& [rows, cols] = problem.packed;
  if (rows == 0 && cols == 0) return;
  IMBREX_EXPECTS(problem.op == Operator::gemm_all_reduce,
                 "packed = {} x {} with {}: only gemm_all_reduce leaves its output packed", rows, cols,
                 name_of(problem.op));
  IMBREX_EXPECTS(rows > 0 && rows <= most_extent && cols > 0 && problem.n % cols == 0,
                 "packed = {} x {}: the rows of a block must be from 1 to {}, and its columns divide N = {}", rows,
                 cols, most_extent, problem.n);
  IMBREX_EXPECTS(problem.ldo == 0, "ldo = {} with a packed output, which lies without gaps: it must be 0", problem.ldo);
  IMBREX_EXPECTS(problem.n / cols <= most_extent / problem.m,
                 "packed = {} x {}: the {} blocks beside each other of M = {} are more than {} rows", rows, cols,
                 problem.n / cols, problem.m, most_extent);
}

void validate_product(const Problem& problem) {
  IMBREX_EXPECTS(problem.scales == Scales::none || problem.type == Type::e4m3,
                 "scales = {} with type {}: only e4m3 has scales", name_of(problem.scales), name_of(problem.type));
  IMBREX_EXPECTS(problem.b_layout != Layout::fragment, "b_layout = fragment: it must be row_major or column_major");
  IMBREX_EXPECTS(problem.b_layout == Layout::row_major || problem.type != Type::e4m3,
                 "b_layout = column_major with type e4m3: B of e4m3 lies so always, and the default must stay");
  IMBREX_EXPECTS(problem.tables == Tables{}, "{} has tables: only an embedding's operator does", name_of(problem.op));
  validate_gather(problem);
  const OperatorDescriptor& op = descriptor_of(problem.op);
  for (std::size_t i = 0; i < op.sizes.size(); ++i)
    if (op.splits[i]) expect_divides(problem, op.sizes[i], size_at(problem, i));
  validate_packed(problem);
  validate_pitches(problem);
}

std::vector<OperandInfo> product_operands(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  const Type result = output_type(problem.type);
  const auto input = [](std::string_view name, Type type, const Extent& e) {
    return OperandInfo{name, OperandRole::input, type, e.rows, e.cols};
  };
  const auto b = [&](int product, const Extent& e) {
    OperandInfo info = input(name_of_b(product), problem.type, e);
    info.layout = layout_of_b(problem);
    info.pitch = ldb_of(problem, product);
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
  output("out", result, is_packed(problem) ? packed_extent(problem) : shapes.out, problem.ldo);
  for (int product = 1; product < count_products(problem); ++product) {
    const std::int64_t cols = cols_of(problem, product);
    all.push_back(b(product, {shapes.b.rows, cols}));
    if (problem.bias) all.push_back(input(name_of_bias(product), result, {1, cols}));
    output(name_of_out(product), result, {shapes.out.rows, cols}, ldo_of(problem, product));
  }
  if (problem.gathered_a) output("gathered", problem.type, {problem.m, problem.k}, 0);
  return all;
}

// The product that an operand of that name belongs to.
int product_of(std::string_view name) {
  const char last = name.back();
  return last >= '1' && last <= '9' ? last - '0' : 0;
}

// The term that a rank's bias is: where ranks add up, all have the same one.
Stretch bias_term(const Problem& problem, int rank) {
  const std::int64_t term = count_k(problem) + (exchanges(problem) ? rank : 0);
  return {term, term + 1};
}

Held product_input(const Problem& problem, int rank, std::string_view name) {
  const RankShapes shapes = shapes_of(problem);
  const bool gather = gathers(problem);
  const int product = product_of(name);
  const std::int64_t row = gather ? rank * shapes.a.rows : 0, k = gather ? 0 : rank * shapes.depth,
                     col = first_col_of(problem, product, rank);
  if (name == "a") return {space_a, row, k};
  if (name == "a_scale") return {space_a_scale, row, k};
  if (name == "b_scale") return {space_b_scale, k, col};
  if (name == name_of_bias(product)) return {space_bias, 0, col, {bias_term(problem, rank)}};
  return {space_b, k, col};
}

// A rectangle of each block.
void packed_output(const Problem& problem, int rank, const std::function<void(const Wanted&)>& visit) {
  const Extent extent = packed_extent(problem);
  for (std::int64_t row = 0; row < extent.rows;) {
    const PackedPlace place = packed_place(problem, row);
    Wanted wanted{row, 0, place.end - row, extent.cols, {space_product, place.row - row, place.col, {{0, problem.k}}}};
    if (problem.bias) wanted.held.terms.push_back(bias_term(problem, rank));
    visit(wanted);
    row = place.end;
  }
}

void product_output(const Problem& problem, int rank, std::string_view name,
                    const std::function<void(const Wanted&)>& visit) {
  if (name == "gathered") return visit({0, 0, problem.m, problem.k, {space_a}});
  if (is_packed(problem)) return packed_output(problem, rank, visit);
  const int product = product_of(name);
  const std::int64_t rows = shapes_of(problem).out.rows, cols = cols_of(problem, product);
  const auto want = [&](std::int64_t first, std::int64_t count, const Stretch& k, std::int64_t row, int bias_of) {
    Wanted wanted{first, 0, count, cols, {space_product, row - first, first_col_of(problem, product, rank), {k}}};
    if (problem.bias) wanted.held.terms.push_back(bias_term(problem, bias_of));
    visit(wanted);
  };
  if (!exchanges(problem))
    return want(0, rows, {0, problem.k}, problem.op == Operator::gemm_reduce_scatter ? rank * rows : 0, rank);
  const std::int64_t block = rows / problem.ranks;
  for (int source = 0; source < problem.ranks; ++source)
    want(source * block, block, {source * problem.k, (source + 1) * problem.k}, rank * block, source);
}

double bytes_of(const Extent& e, Type type) {
  return static_cast<double>(e.rows) * static_cast<double>(e.cols) * static_cast<double>(size_of(type));
}

// Each of them once round, less the own part.
double product_bytes(const Problem& problem) {
  const auto ranks = static_cast<double>(problem.ranks);
  return (ranks - 1) / ranks * bytes_of(shapes_of(problem).product, output_type(problem.type));
}

OperatorDescriptor product_operator(std::string name, std::array<bool, 3> splits, bool sums,
                                    RankShapes (*shapes)(const Problem&), double (*wire_bytes)(const Problem&)) {
  OperatorDescriptor op;
  op.name = std::move(name);
  op.splits = splits;
  op.multiplies = true;
  op.sums = sums;
  op.validate = validate_product;
  op.shapes = shapes;
  op.operands = product_operands;
  op.input = product_input;
  op.wanted = product_output;
  op.term = "k";
  op.last_term = "bias";
  op.count_terms = count_k;
  op.wire_bytes = wire_bytes;
  return op;
}

// Ranks multiply operands of their own, and exchange what comes out.
OperatorDescriptor exchange_operator(std::string name, std::array<bool, 3> splits, RankShapes (*shapes)(const Problem&),
                                     double (*wire_bytes)(const Problem&)) {
  OperatorDescriptor op = product_operator(std::move(name), splits, false, shapes, wire_bytes);
  op.stacked = true;
  return op;
}

}  // namespace

std::vector<OperatorDescriptor> product_operators() {
  std::vector<OperatorDescriptor> all{
      product_operator(
          "all_gather_gemm", {true, true, false}, false,
          [](const Problem& p) -> RankShapes {
            const std::int64_t rows = p.m / p.ranks, cols = p.n / p.ranks;
            return {{rows, p.k}, {p.k, cols}, {p.m, cols}, {p.m, cols}, p.k};
          },
          [](const Problem& p) { return (static_cast<double>(p.ranks) - 1) * bytes_of(shapes_of(p).a, p.type); }),
      product_operator(
          "gemm_reduce_scatter", {true, false, true}, true,
          [](const Problem& p) -> RankShapes {
            const std::int64_t depth = p.k / p.ranks;
            return {{p.m, depth}, {depth, p.n}, {p.m / p.ranks, p.n}, {p.m, p.n}, depth};
          },
          product_bytes),
      product_operator(
          "gemm_all_reduce", {false, false, true}, true,
          [](const Problem& p) -> RankShapes {
            const std::int64_t depth = p.k / p.ranks;
            return {{p.m, depth}, {depth, p.n}, {p.m, p.n}, {p.m, p.n}, depth};
          },
          [](const Problem& p) { return 2 * product_bytes(p); }),  // to the owners and back
      exchange_operator(
          "gemm_all_to_all", {true, false, false},
          [](const Problem& p) -> RankShapes {
            return {{p.m, p.k}, {p.k, p.n}, {p.m, p.n}, {p.m, p.n}, p.k};
          },
          product_bytes)};
  constexpr std::string_view about[] = {
      "A M x K by rows, B K x N by columns  ->  M x N/R", "A M x K by columns, B K x N by rows  ->  M/R x N",
      "A M x K by columns, B K x N by rows  ->  M x N",
      "A R*M x K, B R*K x N, stacked by rank  ->  M x N, row blocks ordered by source"};
  for (std::size_t i = 0; i < all.size(); ++i) all[i].about = about[i];
  all.front().several_b = true;
  return all;
}

std::int64_t first_col_of(const Problem& problem, int product, int rank) {
  std::int64_t first = gathers(problem) ? rank * cols_of(problem, product) : 0;
  for (int before = 0; before < product; ++before) first += n_of(problem, before);
  return first;
}

// Files hold one product's columns, spaces those of all.
FilePlace place_in_file(const Problem& problem, int rank, const OperandInfo& operand) {
  if (exchanges(problem)) return {rank * operand.rows, 0};
  const Held held = held_by(problem, rank, operand.name);
  return {held.row, held.col - (operand.name == "a" ? 0 : first_col_of(problem, product_of(operand.name), 0))};
}

Extent packed_extent(const Problem& problem) {
  return {problem.m * (problem.n / problem.packed.cols), problem.packed.cols};
}

std::int64_t packed_row(const Problem& problem, std::int64_t row, std::int64_t col) {
  const auto& [rows, cols] = problem.packed;
  const std::int64_t begin = row / rows * rows;
  return begin * (problem.n / cols) + col / cols * std::min(rows, problem.m - begin) + row - begin;
}

PackedPlace packed_place(const Problem& problem, std::int64_t packed_row) {
  const auto& [rows, cols] = problem.packed;
  const std::int64_t across = problem.n / cols, begin = packed_row / (rows * across) * rows;
  const std::int64_t high = std::min(rows, problem.m - begin), behind = packed_row - begin * across;
  return {begin + behind % high, behind / high * cols, packed_row - behind % high + high};
}

std::string_view name_of_b(int product) { return names[0][product]; }
std::string_view name_of_bias(int product) { return names[1][product]; }
std::string_view name_of_out(int product) { return names[2][product]; }

}  // namespace imbrex::problem
