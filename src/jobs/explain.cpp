#include "jobs/explain.hpp"

#include <algorithm>

#include "choose/choose.hpp"
#include "choose/signaled_times.hpp"
#include "imbrex/advanced/execute.hpp"
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

std::vector<Expectation> expectations(const Problem& problem, const std::optional<Knobs>& knobs,
                                      const Machine& machine) {
  const auto simulator = make_simulator(machine);
  std::vector<Expectation> expected;
  for (const plan::Candidate& c : choose::candidates(problem, machine, {}, knobs)) {
    const double seconds = simulator->prepare(make_plan(problem, c.strategy, c.knobs))->run({}).seconds;
    const auto same =
        std::find_if(expected.begin(), expected.end(), [&](const Expectation& e) { return e.strategy == c.strategy; });
    if (same == expected.end())
      expected.push_back({c.strategy, seconds});
    else
      same->seconds = std::min(same->seconds, seconds);
  }
  std::stable_sort(expected.begin(), expected.end(),
                   [](const Expectation& x, const Expectation& y) { return x.seconds < y.seconds; });
  return expected;
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
