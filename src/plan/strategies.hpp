// One function per strategy and group of operators.
#pragma once

#include <memory>

#include "plan/builder.hpp"

namespace imbrex::plan {

/// Throws Error(invalid_input) naming the knob and the rule. `problem` is valid.
void validate_knobs(const Problem& problem, Strategy strategy, const Knobs& knobs);

// Problem and knobs are valid.

Plan sequential_plan(const Problem& problem, const Knobs& knobs);
Plan decomposed_plan(const Problem& problem, const Knobs& knobs);

/// A fused strategy: buffers, queues and signals are declared once it has been made.
class FusedStrategy {
 public:
  /// `only`: as Builder's.
  FusedStrategy(const Problem& problem, const Knobs& knobs, int only) : b_(problem, Strategy::fused, knobs, only) {}
  virtual ~FusedStrategy() = default;

  /// Adds all tasks to the builder: each call the same ones.
  virtual void add_tasks() = 0;
  Builder& builder() { return b_; }

 protected:
  Builder b_;
};

std::unique_ptr<FusedStrategy> fused_all_gather(const Problem& problem, const Knobs& knobs, int only);
/// gemm_reduce_scatter, gemm_all_reduce and gemm_all_to_all.
std::unique_ptr<FusedStrategy> fused_scatter(const Problem& problem, const Knobs& knobs, int only);

}  // namespace imbrex::plan
