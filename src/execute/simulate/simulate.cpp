// The simulator behind the common executor interface.
#include <cmath>

#include <fmt/format.h>

#include "base/check.hpp"
#include "execute/peer_access.hpp"
#include "execute/simulate/engine.hpp"
#include "plan/task_stream.hpp"
#include "problem/descriptor.hpp"

namespace imbrex {
namespace {

// splitmix64: the same starts from the same seed on every machine.
double uniform(std::uint64_t& state) {
  state += 0x9e3779b97f4a7c15u;
  std::uint64_t z = state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

class SimulatedExecution final : public Execution {
 public:
  SimulatedExecution(std::shared_ptr<const Plan> plan, const Machine& machine, const SimulateOptions& options)
      : kept_(std::move(plan)),
        plan_(*kept_),
        machine_(machine),
        options_(options),
        program_(simulate::lay_out(plan_, machine_)),
        seed_(options.skew_seed) {}

  // Every run is an epoch of its own from an idle machine; with a seed, each has other starts.
  Report run(const Addresses&) override {
    std::vector<double> starts(plan_.ranks.size());
    if (options_.skew_seed != 0)
      for (double& start : starts) start = uniform(seed_) * options_.max_skew;
    Report report = simulate::Simulation(plan_, program_, machine_, starts, options_.timeline).run();
    if (options_.timeline) {
      const Problem& p = plan_.problem;
      report.timeline.title =
          fmt::format("{} {} {}, {} ranks", name_of(p.op), problem::sizes_text(p), name_of(p.type), p.ranks);
      report.timeline.source = fmt::format("simulated on {}", machine_.name);
    }
    return report;
  }

 private:
  const std::shared_ptr<const Plan> kept_;
  const Plan& plan_;
  const Machine machine_;
  const SimulateOptions options_;
  const simulate::Program program_;  // points into plan_
  std::uint64_t seed_;
};

class Simulator final : public Executor {
 public:
  Simulator(const Machine& machine, const SimulateOptions& options) : machine_(machine), options_(options) {
    validate(machine);
    IMBREX_EXPECTS(std::isfinite(options.max_skew) && options.max_skew >= 0 && options.max_skew <= 1e6,
                   "max_skew is {}; it must be 0 to 1e6 seconds", options.max_skew);
  }
  std::unique_ptr<Execution> prepare_tasks(const TaskMaker& make) override {
    std::shared_ptr<const Plan> plan = make()->whole();
    const std::string refusal = execute::refusal_without_peer_access(*plan, machine_);
    IMBREX_EXPECTS(refusal.empty(), "{}", refusal);
    return std::make_unique<SimulatedExecution>(std::move(plan), machine_, options_);
  }

 private:
  const Machine machine_;
  const SimulateOptions options_;
};

}  // namespace

std::unique_ptr<Executor> make_simulator(const Machine& machine, const SimulateOptions& options) {
  return std::make_unique<Simulator>(machine, options);
}

}  // namespace imbrex
