// From which size on one algorithm is faster than another.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace imbrex::program {

/// Seconds of two algorithms at one size; infinite where one does not run.
struct SizeComparison {
  std::int64_t bytes;
  double current, candidate;
};

/// The least size from which the candidate is faster at every size measured, of comparisons by increasing size, all
/// whole KiB. 0 if it always is; nothing if it is not at the largest size. Between the last size at which it is not and
/// the next one, the first KiB at which straight lines between the times have it ahead: so noise of a tie at one size
/// moves the crossing by little.
std::optional<std::int64_t> crossing(const std::vector<SizeComparison>& comparisons);

}  // namespace imbrex::program
