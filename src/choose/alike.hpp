// What was measured for some problems tells what to run for others.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "imbrex/machine.hpp"
#include "records/records.hpp"

namespace imbrex::choose {

/// Records that plans are chosen by, with what the analytical cost model says of each, which takes longer to work out
/// than all else. They outlive it.
class KnownPlans {
 public:
  /// `machine`: of the GPUs that they were measured on.
  KnownPlans(const records::Records& records, const Machine& machine);

  const records::Records& records() const { return *records_; }
  const std::vector<records::Record>& list() const { return records_->list; }
  /// By record: the logarithm of how many times as long it took, as a ratio to the library's sequence, as the cost
  /// model says.
  double error(std::size_t record) const { return errors_[record]; }
  /// By record: whether SMs load the rows of its operands at their full rate (Machine::sm_unaligned_bandwidth).
  bool aligned(std::size_t record) const { return aligned_[record]; }

 private:
  const records::Records* records_;
  std::vector<double> errors_;
  std::vector<bool> aligned_;
};

/// The plan that was measured as the fastest for this very problem, except its bias; with `strategy`, of that
/// strategy. `copies`: those count whose copy engines bring operands from rank to rank.
std::optional<plan::Candidate> measured_plan(const records::Records& records, const Problem& problem,
                                             std::optional<Strategy> strategy, bool copies = true);

/// A plan that may be run, and what is expected of it: seconds, or seconds over those of the library's sequence.
struct Expected {
  plan::Candidate candidate;
  double time = 0;
  double doubted = 0;     ///< the time, longer for a plan that was found far from the problem
  bool baseline = false;  ///< it runs where nothing promises to be faster
};

/// The one to run: of the least doubted time, or the baseline where that one promises nothing; null: there are none.
const Expected* best_of(const std::vector<Expected>& list);

/// Plans for the problem: those that were found fastest for others of the same operator and number of ranks, of a type
/// of the same size, and of nearly its sizes, and the library's sequence, of few rows with Imbrex' own collectives if
/// some record has them; with `strategy`, those of that strategy. None if all are far. `other_ranks`: where there are
/// none of its number of ranks, except one, records of the nearest serve, at whatever distance, as if each rank
/// multiplied the same, and the sequence is there in any case.
///
/// The analytical cost model (quick_seconds, on `machine`) says how long each plan takes, as a ratio to the library's
/// sequence, corrected by how far it is off for records of its kind; near ones count more in that, and a plan from far
/// is doubted. Tiles are those of the type's kernels (with_kernel_tile); other knobs suit the problem. `hopper`: what
/// the plans run on. `copies`: as measured_plan's. `lent`: the records are of other GPUs, as fast as the machine's,
/// which may be so with other tiles: every fused plan is listed with the machine's best tile, too, as it is where rows
/// of an operand are loaded more slowly than any record's.
std::vector<Expected> plans_alike(const KnownPlans& known, const Problem& problem, std::optional<Strategy> strategy,
                                  const Machine& machine, bool hopper, bool other_ranks, bool copies = true,
                                  bool lent = false);

/// A fused plan with the machine's best tile instead of its own; none where that is its own, or no kernel has it.
std::optional<plan::Candidate> with_best_tile(plan::Candidate candidate, const Problem& problem, const Machine& machine,
                                              bool hopper);

/// The best of them; for a problem that was measured, except its bias, its record's plan.
std::optional<plan::Candidate> choose_alike(const records::Records& records, const Problem& problem,
                                            std::optional<Strategy> strategy, const Machine& machine, bool hopper,
                                            bool other_ranks = false);

/// Whether copy engines bring a fused plan's operands from rank to rank.
bool copies_between_ranks(const plan::Candidate& candidate);

}  // namespace imbrex::choose
