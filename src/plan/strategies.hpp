// One function per strategy and group of operators.
#pragma once

#include "plan/builder.hpp"

namespace imbrex {

/// Throws Error(invalid_input) naming the knob and the rule. `problem` is valid.
void validate_knobs(const Problem& problem, Strategy strategy, const Knobs& knobs);

// Problem and knobs are valid.

Plan sequential_plan(const Problem& problem, const Knobs& knobs);
Plan decomposed_plan(const Problem& problem, const Knobs& knobs);
/// `only`: as Builder's.
Plan fused_all_gather_plan(const Problem& problem, const Knobs& knobs, int only);
/// gemm_reduce_scatter, gemm_all_reduce and gemm_all_to_all.
Plan fused_scatter_plan(const Problem& problem, const Knobs& knobs, int only);

}  // namespace imbrex
