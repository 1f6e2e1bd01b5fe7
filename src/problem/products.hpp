// What follows from a problem whose operator multiplies matrices.
#pragma once

#include "problem/descriptor.hpp"

namespace imbrex::problem {

/// The spaces of such operators: A is (row, k), B (k, col), the product (row, col), the bias (0, col), where the
/// columns of several products are counted side by side, all ranks' of the first one's, then of the next; scales of A
/// (row, first k of the stretch that they hold for), where a rank has one for all its rows with the first of these, and
/// B's (first k of the stretch, col). Terms of a product are k, through all ranks, then the biases.
enum Space : std::uint8_t { space_a, space_b, space_product, space_bias, space_a_scale, space_b_scale };

/// Terms that are k.
inline std::int64_t count_k(const Problem& problem) {
  return descriptor_of(problem.op).stacked ? problem.ranks * problem.k : problem.k;
}

/// How B lies: Hopper's WGMMA takes 8-bit operands with K along memory only.
inline Layout layout_of_b(const Problem& problem) {
  return problem.type == Type::e4m3 ? Layout::column_major : problem.b_layout;
}

/// Matrices B that the problem has, each with a product, an output and perhaps a bias of its own: products are numbered
/// from 0.
inline int count_products(const Problem& problem) {
  int count = 1;
  for (const std::int64_t n : problem.more_n) count += n > 0 ? 1 : 0;
  return count;
}

/// Whether the first product is all that the problem asks for: neither several B nor the gathered A.
inline bool has_one_output(const Problem& problem) { return count_products(problem) == 1 && !problem.gathered_a; }

/// Columns of all ranks' products of that number.
inline std::int64_t n_of(const Problem& problem, int product) {
  return product == 0 ? problem.n : problem.more_n[static_cast<std::size_t>(product) - 1];
}

/// Columns of a rank's B, bias and output of that number.
inline std::int64_t cols_of(const Problem& problem, int product) {
  return problem.op == Operator::all_gather_gemm ? n_of(problem, product) / problem.ranks : n_of(problem, product);
}

/// The first of them, where the whole products of the problem stand side by side.
std::int64_t first_col_of(const Problem& problem, int product, int rank);

/// Where a rank's A, B or bias begins in the whole one, which a file holds.
struct FilePlace {
  std::int64_t row = 0, col = 0;
};
FilePlace place_in_file(const Problem& problem, int rank, const OperandInfo& operand);

/// Bytes from one row of a rank's A, or first B, in memory to the next, of B as it lies.
inline std::int64_t pitch_of_a(const Problem& problem, const RankShapes& shapes) {
  return (problem.lda != 0 ? problem.lda : shapes.a.cols) * static_cast<std::int64_t>(size_of(problem.type));
}
inline std::int64_t pitch_of_b(const Problem& problem, const RankShapes& shapes) {
  const std::int64_t length = layout_of_b(problem) == Layout::column_major ? shapes.b.rows : shapes.b.cols;
  return (problem.ldb != 0 ? problem.ldb : length) * static_cast<std::int64_t>(size_of(problem.type));
}

/// As the problem's leading dimensions say; of B and the output of that product.
inline std::int64_t ldb_of(const Problem& problem, int product) {
  return product == 0 ? problem.ldb : problem.more_ldb[static_cast<std::size_t>(product) - 1];
}
inline std::int64_t ldo_of(const Problem& problem, int product) {
  return product == 0 ? problem.ldo : problem.more_ldo[static_cast<std::size_t>(product) - 1];
}

/// A packed output: Problem::packed says how it lies.
constexpr bool is_packed(const Problem& problem) { return problem.packed.cols != 0; }
Extent packed_extent(const Problem& problem);

/// The row of the packed output that holds element (row, col) of the product, where it is element col % cols.
std::int64_t packed_row(const Problem& problem, std::int64_t row, std::int64_t col);

/// What a row of the packed output holds: elements from (row, col) of the product on; `end`: the first row after the
/// block.
struct PackedPlace {
  std::int64_t row = 0, col = 0, end = 0;
};
PackedPlace packed_place(const Problem& problem, std::int64_t packed_row);

/// "b", "b1" and so on; for the bias and the output "bias", "bias1" and "out", "out1".
std::string_view name_of_b(int product);
std::string_view name_of_bias(int product);
std::string_view name_of_out(int product);

}  // namespace imbrex::problem
