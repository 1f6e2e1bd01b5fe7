// One function per strategy and group of operators.
#pragma once

#include <memory>

#include "plan/builder.hpp"

namespace imbrex::plan {

/// Throws Error(invalid_input) naming the knob and the rule. `problem` is valid.
void validate_knobs(const Problem& problem, Strategy strategy, const Knobs& knobs);

/// The strategies' own rules.
void validate_decomposed(const Problem& problem, const Knobs& knobs);
void validate_fused(const Problem& problem, const Knobs& knobs);
void validate_signaled(const Problem& problem, const Knobs& knobs);

// Problem and knobs are valid.

Plan sequential_plan(const Problem& problem, const Knobs& knobs);
Plan decomposed_plan(const Problem& problem, const Knobs& knobs);
Plan signaled_plan(const Problem& problem, const Knobs& knobs);

/// A strategy whose tasks are made one by one, one rank's or all: buffers, queues and signals are declared once it has
/// been made.
class StreamedStrategy {
 public:
  /// `only`: as Builder's.
  StreamedStrategy(const Problem& problem, Strategy strategy, const Knobs& knobs, int only)
      : b_(problem, strategy, knobs, only) {}
  virtual ~StreamedStrategy() = default;

  /// Adds all tasks to the builder: each call the same ones.
  virtual void add_tasks() = 0;
  /// As TaskStream's.
  virtual bool ranks_are_alike() const = 0;
  /// Throws Error(invalid_input) unless a plan may keep them.
  void expect_room() const { b_.expect_kept(counts_); }
  Builder& builder() { return b_; }

 protected:
  /// For constructors, before they make any list: throws Error(invalid_input) if a rank has too many tasks, or all of
  /// them too many signals.
  void set_counts(const Counts& of_a_rank) {
    counts_ = of_a_rank.times(b_.only() == all_ranks ? b_.ranks() : 1);
    counts_.signals = of_a_rank.times(b_.ranks()).signals;
    b_.expect_handed({of_a_rank.tasks, 0, counts_.signals});
  }

  Builder b_;

 private:
  Counts counts_;  // of all tasks that are added
};

std::unique_ptr<StreamedStrategy> fused_strategy(const Problem& problem, const Knobs& knobs, int only);
std::unique_ptr<StreamedStrategy> fused_all_gather(const Problem& problem, const Knobs& knobs, int only);
/// The operators that send what they have multiplied.
std::unique_ptr<StreamedStrategy> fused_scatter(const Problem& problem, const Knobs& knobs, int only);

}  // namespace imbrex::plan
