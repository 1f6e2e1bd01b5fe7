// What ranks must have in common before they run a plan, for runtime::agree.
#pragma once

#include <optional>

#include "imbrex/execute.hpp"
#include "imbrex/plan.hpp"
#include "runtime/agreement.hpp"

namespace imbrex::execute {

void add(runtime::Terms& terms, const Problem& problem);
void add(runtime::Terms& terms, const Knobs& knobs);
/// What a caller may leave open.
void add(runtime::Terms& terms, const std::optional<Strategy>& strategy, const std::optional<Knobs>& knobs);
/// Those that all ranks' executors share. What paces one rank alone is its own affair.
void add(runtime::Terms& terms, const CudaOptions& options);

/// All of the plan but its problem. Tasks and buffers count by their hashes.
void add_way(runtime::Terms& terms, const Plan& plan);

/// Terms of a plan to prepare that make_plan makes of these, and need not have made.
runtime::Terms terms_of(const Problem& problem, Strategy strategy, const Knobs& knobs);
runtime::Terms terms_of(const Plan& plan);

}  // namespace imbrex::execute
