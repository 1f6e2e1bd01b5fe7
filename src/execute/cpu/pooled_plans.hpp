// Plans that one operator runs one after another on the CPU, each made ready without the other ranks.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "execute/layout.hpp"
#include "imbrex/advanced/execute.hpp"

namespace imbrex::execute {

class PooledPlans {
 public:
  /// Makes a plan, and calls the function with each that the memory shall hold, too.
  using Survey = std::function<std::shared_ptr<const Plan>(const std::function<void(const Plan&)>& too)>;

  /// Collective, all or none, as Executor::prepare: memory for the plan that `survey` makes, the first one, and for all
  /// that it tells of.
  PooledPlans(World& world, const CpuOptions& options, const Survey& survey);
  ~PooledPlans();

  /// The survey's plan.
  std::shared_ptr<const Plan> first() const;

  /// Not collective: every rank prepares a plan before it runs it, sometime, and all run the same plans in the same
  /// order. Throws Error(invalid_input) as Executor::prepare, and Error(runtime_failure) if the plan takes more than
  /// the survey told of and the symmetric heap has no room for it. The execution must not outlive this.
  std::unique_ptr<Execution> prepare(std::shared_ptr<const Plan> plan);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace imbrex::execute
