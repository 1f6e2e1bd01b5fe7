// What was measured for some problems tells what to run for others.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "imbrex/machine.hpp"
#include "records/records.hpp"

namespace imbrex::choose {

/// Records that plans are chosen by, with what the analytical cost model says of each, which takes longer to work out
/// than all else. Both outlive it.
class KnownPlans {
 public:
  KnownPlans(const records::Records& records, const Machine& machine);

  const std::vector<records::Record>& list() const { return records_->list; }
  const Machine& machine() const { return *machine_; }
  /// By record: the logarithm of how many times as long it took, as a ratio to the library's sequence, as the cost
  /// model says.
  double error(std::size_t record) const { return errors_[record]; }

 private:
  const records::Records* records_;
  const Machine* machine_;
  std::vector<double> errors_;
};

/// The plan that was measured as the fastest for this very problem, but for its bias; with `strategy`, of that
/// strategy. `copies`: those count whose copy engines bring operands from rank to rank.
std::optional<plan::Candidate> measured_plan(const records::Records& records, const Problem& problem,
                                             std::optional<Strategy> strategy, bool copies = true);

/// What should be fastest for the problem, of the plans that were found fastest for others of the same operator and
/// number of ranks, of a type of the same size, and of nearly its sizes, or else the library's sequence, of few rows
/// with Imbrex' own collectives if some record has them; with `strategy`, of those of that strategy. None if all are
/// far. `other_ranks`: where there are none of its number of ranks, but for one, records of the nearest serve, at
/// whatever distance, as if each rank multiplied the same.
///
/// A problem that was measured, but for its bias, gets its record's plan. For others the analytical cost model
/// (quick_seconds, on `machine`) says how long each plan takes, as a ratio to the library's sequence, corrected by how
/// far they are off for records of its kind; near ones count more in that, and a plan from far is doubted. Tiles are
/// those of the type's kernels (with_kernel_tile); the other knobs suit the problem but for `partial`, which names the
/// type, and `span_shards`, which its scales allow. `hopper`: what the plan runs on. `copies`: as measured_plan's.
std::optional<plan::Candidate> choose_alike(const KnownPlans& known, const Problem& problem,
                                            std::optional<Strategy> strategy, bool hopper, bool other_ranks,
                                            bool copies = true);
std::optional<plan::Candidate> choose_alike(const records::Records& records, const Problem& problem,
                                            std::optional<Strategy> strategy, const Machine& machine, bool hopper,
                                            bool other_ranks = false);

/// Whether copy engines bring a fused plan's operands from rank to rank.
bool copies_between_ranks(const plan::Candidate& candidate);

}  // namespace imbrex::choose
