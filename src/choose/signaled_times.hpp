// Which groups a signaled plan should have, by an analytical model of its time.
//
// The recurrence is FlashOverlap's (Hong et al., EuroSys 2026, section 4): a group's collective begins once the group
// is computed and the collective before has ended. The search is exact where theirs prunes 2^(n-1) partitions: what has
// happened up to a unit matters to the rest by one number, the time at which its collectives end, and the least is
// best; so the best partition of every prefix gives the best one of the whole, in n^2 steps for each number of groups.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::choose {

/// What groups cost, whose sizes count units: rows of tiles, or tiles, in the order in which they are computed.
struct GroupCosts {
  std::vector<double> computed;  ///< seconds from the product's begin until the first n + 1 units are; not decreasing
  std::function<double(std::int64_t first, std::int64_t count)> collective;  ///< seconds, of those units
  std::function<double(std::int64_t first, std::int64_t count)> behind;  ///< seconds that the last group takes besides
  double least = 0;  ///< seconds that no groups go below: what is put back waits for the product, too

  std::int64_t units() const { return static_cast<std::int64_t>(computed.size()); }
};

/// One group of a predicted timeline; seconds from the product's begin.
struct GroupTime {
  std::int64_t units = 0;
  double computed = 0;          ///< its tiles are
  double begins = 0, ends = 0;  ///< its collective does
};

/// The timeline of groups of these sizes, which cover the units.
std::vector<GroupTime> group_times(const GroupCosts& costs, const std::vector<std::int64_t>& sizes);

/// When all is done, `behind` included.
double seconds_of_groups(const GroupCosts& costs, const std::vector<std::int64_t>& sizes);

/// The sizes of at most `most_groups` groups that end first; of equals those of fewer groups.
std::vector<std::int64_t> best_groups(const GroupCosts& costs, int most_groups);

/// The best groups, found by trying all 2^(units - 1) partitions: what the search is compared with.
std::vector<std::int64_t> best_groups_of_all(const GroupCosts& costs, int most_groups);

/// What a signaled plan with such tiles costs on the machine. For all_gather_gemm time runs backwards: its groups are
/// gathered in the reverse order, and what a rank multiplies of its own A comes last. `groups` of the knobs are
/// ignored. Never empty for a valid problem.
GroupCosts signaled_costs(const Problem& problem, const Knobs& knobs, const Machine& machine);

/// Sizes for Knobs::groups, in the plan's order.
GroupSizes choose_groups(const Problem& problem, const Knobs& knobs, const Machine& machine);

/// Gives the knobs these groups; Knobs::chunks is their number.
void set_groups(Knobs& knobs, const Problem& problem, const Machine& machine);

/// The sizes that a plan of these knobs has, in the plan's order, and its time. Throws Error(invalid_input) where the
/// knobs' groups do not cover the units.
struct SignaledTimes {
  std::vector<GroupTime> groups;  ///< of all_gather_gemm, backwards as above
  double seconds = 0;
};
SignaledTimes signaled_times(const Problem& problem, const Knobs& knobs, const Machine& machine);

}  // namespace imbrex::choose
