// What every operator must give, however it runs: one list of cases, for the CPU, for plans that were chosen by
// simulated time, and for GPUs' own kernels and libraries.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "support/random_operator.hpp"

namespace imbrex::test {

struct ConformanceCase {
  std::string name;     ///< letters, digits and underscores
  RandomOperator what;  ///< its options are empty except a codec
  bool odd = false;     ///< sizes that no kernel of tensor cores takes, and libraries may refuse
};

/// All cases, of so many ranks.
std::vector<ConformanceCase> conformance_cases(int ranks);

/// One rank's part: makes the operator on `world`, and judges each of its calls. `call` has the operands in host
/// memory, and leaves the outputs there. `plan_of`: what ran, of a call's problem. Throws Error(unsound) naming M and
/// element.
void judge_calls(World& all, World& world, const RandomOperator& what, Device device,
                 const std::function<Plan(GemmOperator&, const Problem&)>& plan_of,
                 const std::function<void(GemmOperator&, std::vector<Operand>, ProblemMemory&)>& call);

}  // namespace imbrex::test
