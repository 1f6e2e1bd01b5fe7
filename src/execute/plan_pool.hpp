// Symmetric memory that the plans of one operator share, which run one after another: an operator that takes any M has
// a plan for each.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "execute/layout.hpp"

namespace imbrex::execute {

/// One rank's view; every rank makes the same calls. An area has two halves, of which an epoch uses one, whatever its
/// plan. docs/dev/protocols.md says why two are enough: no rank ends an epoch before every rank has begun it, so who
/// begins an epoch knows that all have left the one before the last, which used the same half.
///
/// Counters are never reset. What they show when an epoch begins depends on the plans that ran before, so this rank
/// adds up what its own counters received. Peers are not asked.
class PlanPool {
 public:
  /// Gives so many zeroed bytes at the same offset on every rank, and needs no communication: what it gives, peers may
  /// reach at once.
  using Allocate = std::function<std::size_t(std::size_t bytes)>;

  /// Memory for plans that take up to `first`. Its counters, of this rank, must show first_count() before a peer posts.
  PlanPool(Allocate allocate, const PlanShare& first, std::uint64_t first_epoch);

  /// Whether a plan that takes so much has a place without more memory.
  bool has_room(const PlanShare& share) const { return area_for(share) < areas_.size(); }

  /// Gives a plan its place, in the smallest area that holds it, and returns the area's number. Allocates a new one
  /// where there is none, whose sizes are powers of two, so that there are few. Keeps nothing if that throws.
  std::size_t place(HeapLayout& layout);

  /// Where the area lies, from the heap's begin.
  std::size_t offset(std::size_t area) const { return areas_[area].offset; }
  const PlanShare& half(std::size_t area) const { return areas_[area].half; }

  /// What all counters of the first area show at first.
  std::uint32_t first_count() const { return base::wrapped<std::uint32_t>(first_epoch_); }

  /// The number of the next epoch.
  std::uint64_t epoch() const { return epoch_; }
  /// What this rank's counters in `area` show when the next epoch begins, by signal.
  std::span<const std::uint32_t> counts(std::size_t area) const { return areas_[area].counts[epoch_ % 2]; }

  /// This rank has run the next epoch, with a plan that lies in `area` and posts so often to this rank's signals.
  void leave(std::size_t area, std::span<const std::uint32_t> posts);

 private:
  struct Area {
    PlanShare half;
    std::size_t offset = 0;
    std::array<std::vector<std::uint32_t>, 2> counts;  // by half and signal: posts so far, of all epochs
  };

  std::size_t area_for(const PlanShare& share) const;  // the number of areas if none holds it
  void add(const PlanShare& half, std::uint32_t count);

  Allocate allocate_;
  std::uint64_t first_epoch_, epoch_;
  std::vector<Area> areas_;  // ever larger
};

}  // namespace imbrex::execute
