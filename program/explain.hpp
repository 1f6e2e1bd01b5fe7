// What operators there are, and why a plan is as it is: what the strategies were expected to take, and when groups are.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "choose/card.hpp"
#include "choose/reason.hpp"
#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"
#include "plan/given_knobs.hpp"

namespace imbrex::program {

/// An operator's name, and what it takes and gives.
struct OperatorHelp {
  std::string_view name, about;
};

/// All that there are.
std::vector<OperatorHelp> list_operators();

using choose::Expectation, choose::Reason;

/// A plan, and why it was chosen where the strategy was not given.
struct Explained {
  Plan plan;
  Reason reason;
};

/// The plan that strategy auto, or the one given, takes on the machine by simulation. `basis`: says that of the machine
/// in the reason: "simulated on 4xh200".
Explained choose_explained(const Problem& problem, std::optional<Strategy> strategy, const plan::GivenKnobs& knobs,
                           const Machine& machine, const std::string& basis);

using choose::Knowledge;

/// As choose::knowledge_of.
Knowledge knowledge_of(const std::string& name, int major);

/// One group of a signaled plan, in seconds from the plan's begin.
struct ExpectedGroup {
  std::int64_t units = 0;       ///< rows of tiles or, packed, tiles
  double begins = 0, ends = 0;  ///< its collective on rank 0
};

/// The groups of a signaled plan in the simulator, and when all is done.
struct ExpectedGroups {
  std::vector<ExpectedGroup> groups;
  double seconds = 0;
};

/// None for other plans, and for plans of one rank.
std::optional<ExpectedGroups> expected_groups(const Plan& plan, const Machine& machine);

/// "scaled with links.latency": with what a curve that was measured has been changed since; empty of others.
std::string_view scaling_of(const Curve& curve);

/// What a prediction of the plan on the machine leaves out, a line each: what does not run today, and curves that were
/// not measured.
std::vector<std::string> caveats_of(const Plan& plan, const Machine& machine);

}  // namespace imbrex::program
