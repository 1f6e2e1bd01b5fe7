// From the operands of a call to the operator that it needs: shapes and refusals, which every front takes from here.
#pragma once

#include <array>
#include <cstddef>

#include "imbrex/operands.hpp"
#include "imbrex/ops.hpp"

namespace imbrex::ops {

/// What one rank gives to a call; c/infer.h tells the names.
struct CallForm {
  Operator op = Operator::all_gather_gemm;
  int ranks = 1;
  int dim = 0;
  bool gathered_a = false;
  Operands operands;
};

/// Operands that a call may name: A, its scale and B's, the gathered A; and those of each product.
inline constexpr std::size_t most_inferred = 4 + 3 * max_products;

struct Inferred {
  GemmShape shape;  ///< m is 0 where A has no rows
  /// Results as the caller sees them, without gaps, `dim` first in memory; no dimensions: the call has none.
  std::array<View, max_products> out{};
  View gathered{.dims = 0};
  /// The call's operands as matrices, in the operator's order; no address: the result is not there yet.
  std::array<Operand, most_inferred> operands{};
  std::size_t count = 0;
};

/// Throws Error(invalid_input) naming value and rule. Takes no memory where nothing is wrong and rows lie without gaps.
Inferred infer(const CallForm& call);

}  // namespace imbrex::ops
