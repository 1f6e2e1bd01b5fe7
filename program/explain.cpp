#include "program/explain.hpp"

#include <algorithm>
#include <variant>

#include <fmt/format.h>

#include "base/ceil_div.hpp"
#include "choose/choose.hpp"
#include "choose/signaled_times.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/ops.hpp"
#include "machine/scaling.hpp"
#include "problem/descriptor.hpp"

namespace imbrex::program {

std::vector<OperatorHelp> list_operators() {
  std::vector<OperatorHelp> all;
  for (std::size_t i = 0; i < problem::count_operators(); ++i) {
    const problem::OperatorDescriptor& op = problem::descriptor_of(static_cast<Operator>(i));
    all.push_back({op.name, op.about});
  }
  return all;
}

Explained choose_explained(const Problem& problem, std::optional<Strategy> strategy, const plan::GivenKnobs& knobs,
                           const Machine& machine, const std::string& basis) {
  if (strategy) {
    OperatorOptions options{.strategy = strategy, .knobs = knobs.optional(), .cpu = {}};
    options.fixed_knobs = knobs.names();
    return {choose_plan(problem, machine, options), {}};
  }
  validate(problem);
  Explained made{{}, {basis, {}}};
  const auto simulator = make_simulator(machine);
  const auto seconds = [&](const Plan& plan) {
    const double simulated = simulator->prepare(plan)->run({}).seconds;
    made.reason.add(plan.strategy, simulated);
    return simulated;
  };
  made.plan = choose::choose(problem, machine, {}, knobs, {}, seconds, [&] { made.reason.expected.clear(); });
  if (made.reason.expected.empty()) made.reason.basis = "nothing else takes this";
  return made;
}

namespace {

// The library's collectives of rank 0, in order, by the group that each is of. A group's first one waits for its tiles;
// of a gather, its last one tells them.
std::vector<std::size_t> groups_of_collectives(const Plan& plan) {
  const bool gathers = plan.problem.op == Operator::all_gather_gemm;
  std::vector<std::size_t> groups;
  std::size_t begun = 0, ended = 0;
  for (const Queue& queue : plan.ranks.front().queues)
    for (const Task& task : queue.tasks) {
      if (!std::holds_alternative<Collective>(task.work)) continue;
      if (!gathers && !task.waits.empty()) ++begun;
      groups.push_back(gathers ? ended : std::max<std::size_t>(begun, 1) - 1);
      if (gathers && !task.posts.empty()) ++ended;
    }
  return groups;
}

}  // namespace

Knowledge knowledge_of(const std::string& name, int major) { return choose::knowledge_of(name, major); }

std::optional<ExpectedGroups> expected_groups(const Plan& plan, const Machine& machine) {
  if (plan.strategy != Strategy::signaled || plan.problem.ranks == 1) return {};
  const Report report = make_simulator(machine, {.timeline = true})->prepare(plan)->run({});
  std::vector<const Span*> collectives;
  for (const Span& span : report.timeline.spans)
    if (span.rank == 0 && span.kind == Span::Kind::collective) collectives.push_back(&span);
  std::stable_sort(collectives.begin(), collectives.end(),
                   [](const Span* x, const Span* y) { return x->begin < y->begin; });
  const std::vector<std::size_t> groups = groups_of_collectives(plan);
  ExpectedGroups expected{{}, report.seconds};
  for (const choose::GroupTime& time : choose::signaled_times(plan.problem, plan.knobs, machine).groups)
    expected.groups.push_back({time.units, 0, 0});
  // A gather's groups count from its end there.
  if (plan.problem.op == Operator::all_gather_gemm) std::reverse(expected.groups.begin(), expected.groups.end());
  if (groups.size() != collectives.size() || groups.empty() || groups.back() + 1 != expected.groups.size()) return {};
  for (std::size_t i = 0; i < groups.size(); ++i) {
    ExpectedGroup& group = expected.groups[groups[i]];
    if (i == 0 || groups[i - 1] != groups[i]) group.begins = collectives[i]->begin;
    group.ends = collectives[i]->end;
  }
  return expected;
}

std::string_view scaling_of(const Curve& curve) { return machine::scaling_of(curve); }

std::vector<std::string> caveats_of(const Plan& plan, const Machine& machine) {
  std::vector<std::string> lines;
  const auto devices = static_cast<int>(machine.host_devices);
  if (const int ranks = plan.problem.ranks; devices > 0 && ranks > devices)
    lines.push_back(fmt::format(
        "the {} ranks lie on {} hosts of machine {}: a prediction only, since operators run on one host today{}", ranks,
        base::ceil_div(ranks, devices), machine.name,
        plan.knobs.nodes == 1 ? "; the plan takes them for one host (nodes = 1)" : ""));
  std::string_view changed;
  for (const Curve Machine::*curve : {&Machine::all_gather, &Machine::reduce_scatter, &Machine::all_reduce,
                                      &Machine::all_to_all, &Machine::random_rows})
    if (changed.empty()) changed = scaling_of(machine.*curve);
  if (!changed.empty())
    lines.push_back(fmt::format("machine {}'s measured curves are {}: no measurement says so", machine.name, changed));
  return lines;
}

}  // namespace imbrex::program
