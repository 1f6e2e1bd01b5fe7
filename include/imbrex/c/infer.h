/* What follows from the operands of a call: the operator that the call needs, and what its results look like. For
   callers that have tensors, as the Python package's fronts do. c.h includes it.

   Nothing here needs a world or memory: only types, extents and strides are read. Any thread may call it, at any time.
   It tells each rank for itself: that ranks give what differs is refused when they make the operator, or call it. */
#ifndef IMBREX_C_INFER_H
#define IMBREX_C_INFER_H

#include "imbrex/c.h"

#ifdef __cplusplus
extern "C" {
#endif

/// What sets an operator apart from the others, as numbers: for callers whose sizes are not known yet, as those of a
/// compiler are. imbrex_operator_infer applies the same rules to sizes.
typedef struct imbrex_operator_rules {
  size_t size;
  const char* name;      ///< "gemm_reduce_scatter" ...; lives for ever
  imbrex_type out_type;  ///< of "out" and the biases
  int32_t sums;          ///< not 0: it sums over the ranks, and takes a codec
  int32_t several_b;     ///< not 0: it takes further B, and gives the gathered A
  int32_t rows_times;    ///< 1 or the ranks: "out" has as many rows as "a", times `rows_times`, over `rows_over`,
  int32_t rows_over;     ///< which divides them along the dimension of the collective
  int32_t reserved;
} imbrex_operator_rules;

/// The rules of the operator of that kind with A and B of that type, over `ranks` ranks. `rules->size` is set before.
/// Fails for a kind that is none, which tells callers how many kinds there are: they are numbered from 0.
imbrex_status imbrex_operator_rules_of(imbrex_operator_kind kind, imbrex_type type, int32_t ranks,
                                       imbrex_operator_rules* rules) IMBREX_NOEXCEPT;

/// What one rank gives to a call.
typedef struct imbrex_call {
  size_t size;
  imbrex_operator_kind kind;
  int32_t ranks;
  int32_t dim;         ///< the dimension of "a" that is gathered, or of "out" that is scattered: 0 or, where "a" has
                       ///< three, 1
  int32_t gathered_a;  ///< not 0: "gathered" is asked for
  /// "a", "b" and, where there are such, "bias", "a_scale", "b_scale", "b1", "bias1", "b2", "bias2"; and the outputs
  /// that are there already, of "out", "out1", "out2" and "gathered". In any order. "a" has two dimensions or three,
  /// with K last, and so have outputs; B has two. Data may be NULL.
  const imbrex_operand* operands;
  uint64_t count;
} imbrex_call;

/// Results with the dimensions of "a": types, extents, and strides of such without gaps whose dimension `dim` comes
/// first in memory. What the call does not have has no dimensions. Data are NULL.
typedef struct imbrex_results {
  size_t size;
  imbrex_view out;
  imbrex_view more_out[IMBREX_MOST_PRODUCTS - 1];  ///< "out1" and "out2"
  imbrex_view gathered;
} imbrex_results;

/// Tells what `gemm` to make an operator from that runs the call, and what its results look like. Sizes of both
/// structures are set before. `gemm` says of how the operands lie what an operator must be made for: B's layout, and
/// leading dimensions where rows lie apart; any_m and packed are the caller's to add. gemm->m is 0 where "a" has no
/// rows: such a rank makes no operator (imbrex_world_skip_call).
///
/// `operands`, which may be NULL, receives the call's operands as imbrex_operator_run takes them: in its order, as
/// matrices; data are those given, and NULL for results that are not there yet. *count, which says for how many there
/// is room, becomes how many there are. Names live for ever.
///
/// Fails with IMBREX_INVALID_INPUT, and a text that names value and rule:
///
/// - an operand is missing, given twice, or of no such operator;
/// - types and extents make no product, or do not divide by the ranks;
/// - three dimensions lie as no matrix does;
/// - an output has another shape;
/// - validate (problem.hpp) refuses the problem.
///
/// imbrex_operator_run checks the rest of what a bias, scales and outputs must be.
imbrex_status imbrex_operator_infer(const imbrex_call* call, imbrex_gemm* gemm, imbrex_results* results,
                                    imbrex_operand* operands, uint64_t* count) IMBREX_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
