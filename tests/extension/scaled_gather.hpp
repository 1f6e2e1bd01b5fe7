// An operator that the library does not know: each rank has rows of x and a factor for each of them, scales its rows,
// and all ranks get all rows. It lives here alone: a descriptor, a kind of work, and plans.
#pragma once

#include "imbrex/plan.hpp"

namespace imbrex::test {

/// rows x cols in all; rows are split over the ranks. x and out are fp32, as are the factors.
struct ScaledGather {
  std::int64_t rows = 0, cols = 0;
  int ranks = 1;
};

/// Registers the operator and its work, once.
Problem problem_of(const ScaledGather& size);

enum class Way {
  stores,      ///< blocks of rows go straight to all ranks
  shares,      ///< the same, each block by three tasks
  collective,  ///< into a workspace, and an all-gather
};

/// A sound plan in blocks of `step` rows.
Plan scaled_gather_plan(const ScaledGather& size, Way way, std::int64_t step);

}  // namespace imbrex::test
