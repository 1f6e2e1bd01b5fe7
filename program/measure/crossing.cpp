#include "program/measure/crossing.hpp"

#include <algorithm>
#include <cmath>

namespace imbrex::program {

std::optional<std::int64_t> crossing(const std::vector<SizeComparison>& comparisons) {
  constexpr std::int64_t kib = 1024;
  const auto won = [](const SizeComparison& d) { return d.candidate < d.current; };
  // From the largest size down.
  const auto last_lost = std::find_if_not(comparisons.rbegin(), comparisons.rend(), won);
  if (last_lost == comparisons.rend()) return comparisons.empty() ? std::nullopt : std::optional<std::int64_t>(0);
  if (last_lost == comparisons.rbegin()) return std::nullopt;
  const SizeComparison &lost = *last_lost, &next = *std::prev(last_lost);
  const double behind = lost.candidate - lost.current, ahead = next.current - next.candidate;
  // Who cannot go has lost nothing up to there, or gains nothing before.
  if (!std::isfinite(behind) || !std::isfinite(ahead)) return next.bytes;
  const double share = behind / (behind + ahead), kibs = static_cast<double>((next.bytes - lost.bytes) / kib);
  return std::min(next.bytes, lost.bytes + kib * (static_cast<std::int64_t>(share * kibs) + 1));
}

}  // namespace imbrex::program
