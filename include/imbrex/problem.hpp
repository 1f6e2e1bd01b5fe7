// What is computed: an operator, its sizes and types, and the number of ranks. src/problem/ describes each operator
// once.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "imbrex/operands.hpp"
#include "imbrex/tables.hpp"
#include "imbrex/types.hpp"

namespace imbrex {

/// The computation and the collective that depends on it. R is the number of ranks; shapes are per rank.
///
///     all_gather_gemm      A: M/R x K, B: K x N/R  ->  M x N/R     (A gathered over the ranks, then multiplied)
///     gemm_reduce_scatter  A: M x K/R, B: K/R x N  ->  M/R x N     (products summed over ranks, rows split)
///     gemm_all_reduce      A: M x K/R, B: K/R x N  ->  M x N       (products summed over ranks)
///     gemm_all_to_all      A: M x K,   B: K x N    ->  M x N       (row block d of rank s's product goes to rank d,
///                                                                   which holds the blocks ordered by source)
///
/// Operators that multiply no matrices have numbers after these, such as embedding_all_to_all.
///
/// With a bias, a row of elements as wide as the output is added to each of its rows. all_gather_gemm adds each rank's
/// own. gemm_reduce_scatter and gemm_all_reduce add one that is the same on every rank, once, after the sum over the
/// ranks. gemm_all_to_all adds each rank's own to its product before the blocks go out. With type e4m3, A and B hold
/// 8-bit floats; the bias and the output are bf16. all_gather_gemm may multiply one gathered A by several matrices B,
/// each with its own bias and output (q, k and v; gate and up). It may also give the gathered A, M x K, as an output.
enum class Operator : std::uint8_t { all_gather_gemm, gemm_reduce_scatter, gemm_all_reduce, gemm_all_to_all };

/// Every rank looks up the bags of the global batch in its own tables. Each ends with its part of the batch for all
/// tables, side by side: batch/R x the columns of all (see Tables).
inline constexpr Operator embedding_all_to_all{4};

/// Scales of an e4m3 problem. They multiply products in fp32, before these are rounded, added to anything or sent.
/// Element (r, c) of a rank's product becomes a_scale[r] * b_scale[c] * sum over k of a[r][k] * b[k][c]. Every rank has
/// scales of its own A and B; all_gather_gemm gathers those of A with its rows.
enum class Scales : std::uint8_t {
  none,    ///< all are 1
  tensor,  ///< one of each rank's A, one of its B
  row,     ///< one of each row of A, one of each column of B
};

/// Largest number of ranks that a plan may name: sets of ranks are 64-bit masks.
inline constexpr int max_ranks = 64;

/// Largest number of matrices B that one gathered A is multiplied by.
inline constexpr int max_products = 3;

/// A table, or some of its columns, on the rank that looks up its bags.
struct TableShard {
  int owner = 0;
  std::int64_t rows = 0;
  std::int64_t dim = 0;        ///< columns
  std::int64_t first_col = 0;  ///< where they begin in a row of the output
  double pooling = 1;          ///< rows of a bag, on average: what times and balance are predicted by, and no result

  bool operator==(const TableShard&) const = default;
};

/// The tables of an embedding_all_to_all. The shards of a rank have places there in this order; the columns of all
/// are the output's, each in one shard.
struct Tables {
  std::vector<TableShard> shards;
  TableRows rows = TableRows::fp32;

  bool operator==(const Tables&) const = default;
};

/// Rows and columns of a matrix.
struct Extent {
  std::int64_t rows = 0, cols = 0;
  bool operator==(const Extent&) const = default;
};

struct Problem {
  Operator op = Operator::all_gather_gemm;
  std::int64_t m = 0, n = 0, k = 0;  ///< global sizes, as in the table above; 0: those that the operator has not
  int ranks = 1;
  Type type = Type::bf16;  ///< of A and B; that of the bias and the output is output_type(type)
  bool bias = false;
  Scales scales = Scales::none;  ///< other than none: of e4m3 only
  /// How B lies: row_major, K x N by rows; or column_major, its transpose, N x K by rows, as a linear layer's weights
  /// [out, in] lie. B of e4m3 lies column_major always, and the default is what an e4m3 problem says.
  Layout b_layout = Layout::row_major;
  /// all_gather_gemm without scales: the widths N of the second and the third B; 0: there is none. All have the first
  /// one's K, type, layout and bias or none.
  std::array<std::int64_t, max_products - 1> more_n{};
  bool gathered_a = false;  ///< all_gather_gemm: the gathered A is an output, too
  /// Leading dimensions: elements from one row of A, B and the output to the next, as these lie in the caller's memory
  /// (B column_major: rows of N x K), the same on every rank; 0: they lie without gaps. What is between the rows is
  /// neither read nor written. Bias, scales and the gathered A lie without gaps.
  std::int64_t lda = 0, ldb = 0, ldo = 0;
  /// Leading dimensions of the second and the third B, and of their outputs.
  std::array<std::int64_t, max_products - 1> more_ldb{}, more_ldo{};
  /// gemm_all_reduce: the output lies packed in blocks of these rows and columns; the columns divide N; 0 x 0: in rows.
  /// Each block lies by rows without gaps, followed by the next one of its row of blocks, then the next row of
  /// blocks; the last one's blocks may have fewer rows. So the output is a matrix of M * N / cols x cols.
  Extent packed{};
  Tables tables{};  ///< embedding_all_to_all only; m is its global batch, and `type` the output's

  bool operator==(const Problem&) const = default;
};

/// Per-rank shapes of A, B, the output, and of the GEMM that one rank computes (rows x cols, over `depth`). Scales are
/// fp32: a column for A and a row for B, empty if there are none. Where there are several B, `b` and `out` are the
/// first one's, and `product` has the columns of all.
struct RankShapes {
  Extent a, b, out, product;
  std::int64_t depth = 0;
  Extent a_scale{}, b_scale{};
};

/// Throws Error(invalid_input), which names the value and the rule, if a rule is broken. Sizes are from 1 to 2^31 - 1,
/// and ranks from 1 to max_ranks. Sharded dimensions divide by the ranks. Only e4m3 has scales, and its b_layout is the
/// default; b_layout is never fragment. Only all_gather_gemm without scales has several B. A leading dimension is 0, or
/// from the length of a rank's row to 2^31 - 1. Only gemm_all_reduce has a packed output, without a leading dimension,
/// in blocks whose columns divide N.
void validate(const Problem& problem);

/// Shapes per rank; `problem` must be valid, and its operator one that multiplies matrices.
RankShapes shapes_of(const Problem& problem);

/// One rank's operands, in the problem's order: a, b, bias, a_scale, b_scale, out, then b1, bias1, out1 and b2, bias2,
/// out2 of further B, then gathered: those that it has. A bias is a row as wide as its output; scales are fp32, a
/// column for the rows of A and a row for the columns of B. Other operators have operands of their own. `problem` must
/// be valid.
std::vector<OperandInfo> operands_of(const Problem& problem);

std::string_view name_of(Operator op);
std::string_view name_of(Scales scales);

/// Inverse of name_of; throws Error(invalid_input) listing the names that exist.
Operator parse_operator(std::string_view name);
Scales parse_scales(std::string_view name);

}  // namespace imbrex
