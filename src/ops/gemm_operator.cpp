// What the operators share: choose the plan, execute it.
#include <optional>

#include "imbrex/ops.hpp"
#include "tune/choose.hpp"

namespace imbrex {

struct GemmOperator::State {
  Plan plan;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Execution> execution;
};

GemmOperator::GemmOperator(World& world, const Problem& problem, const OperatorOptions& options)
    : state_(std::make_unique<State>()) {
  state_->plan = choose_plan(problem, nominal_host_machine(), options);
  state_->executor = make_cpu_executor(world, options.cpu);
  state_->execution = state_->executor->prepare(state_->plan);
}

GemmOperator::~GemmOperator() = default;

Report GemmOperator::operator()(const void* a, const void* b, void* out) { return state_->execution->run({a, b, out}); }

const Plan& GemmOperator::plan() const { return state_->plan; }

Plan choose_plan(const Problem& problem, const Machine& machine, const OperatorOptions& options) {
  validate(problem);
  if (options.knobs && options.strategy) return make_plan(problem, *options.strategy, *options.knobs);
  auto list = candidates(problem, machine, options.strategy);
  if (options.knobs)
    for (Candidate& c : list) c.knobs = *options.knobs;
  const auto simulator = make_simulator(machine);
  return choose(problem, list, [&](const Plan& plan) { return simulator->prepare(plan)->run({}).seconds; });
}

}  // namespace imbrex
