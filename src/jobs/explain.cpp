#include "jobs/explain.hpp"

#include <algorithm>

#include "choose/choose.hpp"
#include "choose/signaled_times.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/ops.hpp"
#include "problem/descriptor.hpp"

namespace imbrex::jobs {

std::vector<OperatorHelp> list_operators() {
  std::vector<OperatorHelp> all;
  for (std::size_t i = 0; i < problem::count_operators(); ++i) {
    const problem::OperatorDescriptor& op = problem::descriptor_of(static_cast<Operator>(i));
    all.push_back({op.name, op.about});
  }
  return all;
}

Explained choose_explained(const Problem& problem, std::optional<Strategy> strategy, const std::optional<Knobs>& knobs,
                           const Machine& machine, const std::string& basis) {
  if (strategy) return {choose_plan(problem, machine, {strategy, knobs, {}}), {}};
  validate(problem);
  Explained made{{}, {basis, {}}};
  const auto candidates = choose::candidates(problem, machine, {}, knobs);
  if (candidates.size() == 1) made.reason.basis = "nothing else takes this";
  const auto simulator = make_simulator(machine);
  const auto seconds = [&](const Plan& plan) {
    const double simulated = simulator->prepare(plan)->run({}).seconds;
    made.reason.add(plan.strategy, simulated);
    return simulated;
  };
  made.plan = choose::choose(problem, candidates, seconds);
  return made;
}

std::optional<ExpectedGroups> expected_groups(const Plan& plan, const Machine& machine) {
  if (plan.strategy != Strategy::signaled || plan.problem.ranks == 1) return {};
  const choose::SignaledTimes times = choose::signaled_times(plan.problem, plan.knobs, machine);
  ExpectedGroups expected{{}, times.seconds};
  for (const choose::GroupTime& time : times.groups)
    expected.groups.push_back({time.units, time.computed, time.begins, time.ends});
  if (plan.problem.op != Operator::all_gather_gemm) return expected;
  // A gather's times count from its end, and its last group comes first.
  std::reverse(expected.groups.begin(), expected.groups.end());
  for (ExpectedGroup& group : expected.groups)
    group = {group.units, times.seconds - std::max(group.tiles, group.begins), times.seconds - group.ends,
             times.seconds - group.begins};
  return expected;
}

}  // namespace imbrex::jobs
