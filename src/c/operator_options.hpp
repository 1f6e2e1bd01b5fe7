// What operators of all kinds take.
#pragma once

#include <cstddef>

#include "c/convert.hpp"
#include "imbrex/ops.hpp"

namespace imbrex::c {

/// Throws Error(invalid_input) for a number that is no kind.
Operator product_operator(imbrex_operator_kind kind);

inline constexpr std::size_t first_info = 128;
static_assert(sizeof(imbrex_operand_info) == first_info);

/// Throws Error(invalid_input).
OperatorOptions operator_options(const imbrex_operator_options* given);

}  // namespace imbrex::c
