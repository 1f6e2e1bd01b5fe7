// Runs a plan on operands whose products and sums are exact, so that results compare to the bit.
#pragma once

#include "imbrex/advanced/execute.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/world.hpp"

namespace imbrex::test {

/// Runs `epochs` epochs of an fp32 plan on this rank, with new small integers as operands each, and compares every
/// element. Gaps between the rows of inputs hold NaN, and those of outputs a number that must stay. Returns 0 if all
/// were equal, else 1.
int run_exact(World& world, const Plan& plan, const CpuOptions& options, int epochs);

}  // namespace imbrex::test
