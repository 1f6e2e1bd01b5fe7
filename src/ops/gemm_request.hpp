// What a caller asks of an operator with a GEMM: made whole, refused, and put into the terms that ranks compare.
#pragma once

#include "imbrex/ops.hpp"
#include "imbrex/world.hpp"
#include "plan/given_knobs.hpp"
#include "runtime/agreement.hpp"

namespace imbrex::ops {

Problem problem_of(Operator op, const GemmShape& shape, int ranks);

/// Its inverse, of a problem whose output lies in rows.
GemmShape shape_of(const Problem& problem);

plan::GivenKnobs given_of(const OperatorOptions& options);

/// Throws Error(invalid_input) where a plan is given that the operator cannot run, or what follows from it is given,
/// too.
void expect_own_plan(const Problem& problem, const GemmShape& shape, const OperatorOptions& options);

/// The part of these checks that holds for every operator.
void expect_plan_of(const Problem& problem, const OperatorOptions& options);

/// Throws Error(invalid_input) where no plan leaves the problem's output packed.
void expect_packable(const Problem& problem, bool any_m, const OperatorOptions& options);

/// A packed output lies as a plan's tiles do, so knobs are chosen first: sets them, and how the problem's output lies.
void choose_packed(World& world, bool on_gpus, Problem& problem, OperatorOptions& options);

runtime::Terms terms_of(const Problem& problem, bool any_m, const OperatorOptions& options, bool gpus_wanted,
                        bool checked);

/// The options with the codec in its own place and in given knobs, whichever of the two the caller chose. Throws
/// Error(invalid_input) where the two differ, or nothing takes it.
OperatorOptions with_codec(const Problem& problem, OperatorOptions options);

}  // namespace imbrex::ops
