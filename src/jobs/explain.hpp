// What operators there are, and why a plan is as it is: what the strategies were expected to take, and when groups are.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::jobs {

/// An operator's name, and what it takes and gives.
struct OperatorHelp {
  std::string_view name, about;
};

/// All that there are.
std::vector<OperatorHelp> list_operators();

/// The least simulated seconds of a strategy's candidates.
struct Expectation {
  Strategy strategy = Strategy::sequential;
  double seconds = 0;
};

/// What strategy auto compares on the machine, the fastest first.
std::vector<Expectation> expectations(const Problem& problem, const std::optional<Knobs>& knobs,
                                      const Machine& machine);

/// One group of a signaled plan, in seconds from the plan's begin.
struct ExpectedGroup {
  std::int64_t units = 0;       ///< rows of tiles or, packed, tiles
  double tiles = 0;             ///< when its tiles are computed; all_gather_gemm: when they begin
  double begins = 0, ends = 0;  ///< its collective
};

/// The groups of a signaled plan, by the analytical cost model, and when all is done.
struct ExpectedGroups {
  std::vector<ExpectedGroup> groups;
  double seconds = 0;
};

/// None for other plans, and for plans of one rank.
std::optional<ExpectedGroups> expected_groups(const Plan& plan, const Machine& machine);

}  // namespace imbrex::jobs
