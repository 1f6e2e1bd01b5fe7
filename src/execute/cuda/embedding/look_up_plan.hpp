// What the kernel of lookups runs of a plan. Pure host code.
#pragma once

#include <cstdint>
#include <string>

#include "imbrex/plan.hpp"

namespace imbrex::cuda {

/// As WorkOnGpu::refusal_of_step. Taken are whole blocks of all the rank's shards, with one store to its own workspace.
std::string refusal_of_bags(const Plan& plan, int rank, const Block& block);

/// How the kernel goes about a plan of strategy fused: its tasks are slices of each rank's rows.
struct LookUpPlan {
  std::int64_t slice_rows = 0;  ///< of each but the last
  std::int32_t slices = 0;      ///< of each rank's rows
};

/// Throws Error(invalid_input) for a plan whose tasks are not those that strategy fused makes, or too many.
LookUpPlan look_up_plan(const Plan& plan);

/// As WorkOnGpu::expect_runs.
void expect_look_ups(const Plan& plan);

}  // namespace imbrex::cuda
