// Why a plan is as it is: what the strategies were expected to take, and when groups are.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::jobs {

/// The least simulated seconds of a strategy's candidates.
struct Expectation {
  Strategy strategy = Strategy::sequential;
  double seconds = 0;
};

/// What strategy auto compares on the machine, the fastest first.
std::vector<Expectation> expectations(const Problem& problem, const std::optional<Knobs>& knobs,
                                      const Machine& machine);

/// "auto takes signaled, expected to take 5.936 ms; decomposed 5.978 ms, sequential 6.589 ms".
std::string text_of(const std::vector<Expectation>& expected);

/// Lines about a signaled plan's groups: their sizes, and when each is computed and sent, in closed form; none of other
/// plans.
std::vector<std::string> explain_groups(const Plan& plan, const Machine& machine);

}  // namespace imbrex::jobs
