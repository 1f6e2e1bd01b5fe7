// Plans that the operators of a world run one after another on GPUs, each made ready without the other ranks.
#pragma once

#include <memory>
#include <string>

#include "imbrex/advanced/execute.hpp"
#include "plan/strategies/candidate.hpp"

namespace imbrex::cuda {

/// What a plan is made from, which all ranks know.
struct PlanToRun {
  Problem problem;
  plan::Candidate candidate;
};

class PooledPlans {
 public:
  virtual ~PooledPlans() = default;

  /// What the plan needs that only all ranks together could make, in words, the same on every rank; empty if it needs
  /// nothing that is not there.
  virtual std::string lacks(const PlanToRun& plan) const = 0;

  /// Not collective: every rank prepares a plan before it runs it, sometime, and all run the same plans in the same
  /// order. The calls of all executions count as those of one. Throws Error(invalid_input) as Executor::prepare, the
  /// same on every rank, and where it lacks something. A plan that takes more memory than the survey told of is not
  /// prepared, and null returned, the same on every rank; with `grow` it gets more from the symmetric heap, and
  /// Error(runtime_failure) comes where that is full.
  virtual std::shared_ptr<Execution> prepare(const PlanToRun& plan, bool grow = false) = 0;

  /// As Execution's.
  virtual void expect_stream(CudaStream stream) const = 0;

  /// Throws Error(invalid_input) while the stream is captured: a plan is not prepared then.
  virtual void expect_uncaptured(CudaStream stream, std::int64_t m) const = 0;
};

}  // namespace imbrex::cuda
