// What follows from a problem, and from its knobs, before there is a plan.
#pragma once

#include "imbrex/plan.hpp"
#include "problem/products.hpp"

namespace imbrex::plan {

// What others ask of products by plans' names.
using problem::cols_of, problem::count_products, problem::exchanges, problem::first_col_of, problem::has_one_output,
    problem::is_packed, problem::layout_of_b, problem::ldb_of, problem::ldo_of, problem::n_of, problem::name_of_b,
    problem::name_of_bias, problem::name_of_out, problem::packed_row, problem::pitch_of_a, problem::pitch_of_b;

/// Whether M divides by the ranks, each of which has rows of its own.
inline bool splits_m(Operator op) { return problem::descriptor_of(op).splits[0]; }

/// The blocks in which a signaled plan of these knobs leaves a packed output: swizzle groups of its tiles.
inline Extent packed_blocks(const Problem& problem, const Knobs& knobs) {
  return {knobs.tile_m * knobs.group, knobs.tile_n < problem.n ? knobs.tile_n : problem.n};
}

/// The same problem whose operands lie without gaps.
Problem without_gaps(Problem problem);

/// Bytes that a rank puts on the wire, whichever plan runs.
inline double wire_bytes(const Problem& problem) { return problem::descriptor_of(problem.op).wire_bytes(problem); }

/// Bytes on the wire for each byte of elements of `type`, where both phases of an all-reduce, which carry as many, or a
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
