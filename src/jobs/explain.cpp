#include "jobs/explain.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "choose/choose.hpp"
#include "choose/signaled_times.hpp"
#include "imbrex/advanced/execute.hpp"
#include "plan/wave_groups.hpp"

namespace imbrex::jobs {
namespace {

std::string time_text(double seconds) {
  return seconds < 1e-3 ? fmt::format("{:.2f} us", 1e6 * seconds) : fmt::format("{:.3f} ms", 1e3 * seconds);
}

}  // namespace

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

std::string text_of(const std::vector<Expectation>& expected) {
  std::string text = fmt::format("auto takes {}, expected to take {}", name_of(expected.front().strategy),
                                 time_text(expected.front().seconds));
  for (std::size_t i = 1; i < expected.size(); ++i)
    text += fmt::format("{} {} {}", i == 1 ? ";" : ",", name_of(expected[i].strategy), time_text(expected[i].seconds));
  return text;
}

std::vector<std::string> explain_groups(const Plan& plan, const Machine& machine) {
  if (plan.strategy != Strategy::signaled || plan.problem.ranks == 1) return {};
  const bool gather = plan.problem.op == Operator::all_gather_gemm;
  const choose::SignaledTimes times = choose::signaled_times(plan.problem, plan.knobs, machine);
  std::vector<std::string> lines{fmt::format("{} group{}, of {}; {} SMs are kept free for their collectives",
                                             times.groups.size(), times.groups.size() == 1 ? "" : "s",
                                             plan.knobs.packed ? "tiles" : "rows of tiles", plan.knobs.kept_free)};
  for (std::size_t g = 0; g < times.groups.size(); ++g) {
    // A gather's times count from its end.
    const choose::GroupTime& time = times.groups[gather ? times.groups.size() - 1 - g : g];
    lines.push_back(gather
                        ? fmt::format("  group {}: {}, gathered from {} to {}, its tiles from {} on", g + 1, time.units,
                                      time_text(times.seconds - time.ends), time_text(times.seconds - time.begins),
                                      time_text(times.seconds - std::max(time.computed, time.begins)))
                        : fmt::format("  group {}: {}, computed at {}, its collective from {} to {}", g + 1, time.units,
                                      time_text(time.computed), time_text(time.begins), time_text(time.ends)));
  }
  lines.push_back(fmt::format("  all done at {}, in closed form", time_text(times.seconds)));
  return lines;
}

}  // namespace imbrex::jobs
