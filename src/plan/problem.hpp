// What follows from a problem, and from its knobs, before there is a plan.
#pragma once

#include "imbrex/plan.hpp"

namespace imbrex::plan {

/// How B lies: Hopper's matrix instructions take 8-bit operands with K along memory only.
inline Layout layout_of_b(const Problem& problem) {
  return problem.type == Type::e4m3 ? Layout::column_major : problem.b_layout;
}

/// Whether M divides by the ranks, each of which has rows of its own.
constexpr bool splits_m(Operator op) { return op != Operator::gemm_all_reduce; }

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

/// Those that a rank's B, bias and output of that number have.
inline std::int64_t cols_of(const Problem& problem, int product) {
  return problem.op == Operator::all_gather_gemm ? n_of(problem, product) / problem.ranks : n_of(problem, product);
}

/// The first of them, where the whole products of the problem stand side by side.
std::int64_t first_col_of(const Problem& problem, int product, int rank);

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

/// What a row of the packed output holds: elements from (row, col) of the product on; `end`: the first row behind the
/// block.
struct PackedPlace {
  std::int64_t row = 0, col = 0, end = 0;
};
PackedPlace packed_place(const Problem& problem, std::int64_t packed_row);

/// The blocks in which a signaled plan of these knobs leaves a packed output: super-rows of its tiles.
inline Extent packed_blocks(const Problem& problem, const Knobs& knobs) {
  return {knobs.tile_m * knobs.group, knobs.tile_n < problem.n ? knobs.tile_n : problem.n};
}

/// The same problem whose operands lie without gaps.
Problem without_gaps(Problem problem);

/// "b", "b1" and so on, and likewise.
std::string_view name_of_b(int product);
std::string_view name_of_bias(int product);
std::string_view name_of_out(int product);

/// Bytes that a rank puts on the wire, whichever plan runs: an all-reduce's twice, to the owners and back.
double wire_bytes(const Problem& problem);

/// Bytes on the wire for each byte of elements of `type`, where both steps of an all-reduce, which carry as many, or a
/// reduce-scatter go through the codecs.
double shortening(const CodecPair& codec, Type type);

/// Fused plans that send results: whether a rank owns columns of the product, not rows. An all-reduce may split its
/// result as it likes; of too few rows for a tile each, ranks own columns. In one shot everybody owns everything.
bool owns_columns(const Problem& problem, const Knobs& knobs);

/// What a rank multiplies in all: A (m x k) by B (k x n), of the gathered rows in an all-gather.
struct ProductSize {
  std::int64_t m = 0, n = 0, k = 0;
  Type type = Type::bf16;
  Layout b_layout = Layout::row_major;  ///< as Problem's

  bool operator==(const ProductSize&) const = default;
};
ProductSize product_of_rank(const Problem& problem);

}  // namespace imbrex::plan
