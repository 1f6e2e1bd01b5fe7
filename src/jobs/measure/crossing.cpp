#include "jobs/measure/crossing.hpp"

#include <algorithm>
#include <cmath>

namespace imbrex::jobs {

std::optional<std::int64_t> crossing(const std::vector<Duel>& duels) {
  constexpr std::int64_t kib = 1024;
  const auto won = [](const Duel& d) { return d.challenger < d.holder; };
  // From the largest size down.
  const auto last_lost = std::find_if_not(duels.rbegin(), duels.rend(), won);
  if (last_lost == duels.rend()) return duels.empty() ? std::nullopt : std::optional<std::int64_t>(0);
  if (last_lost == duels.rbegin()) return std::nullopt;
  const Duel &lost = *last_lost, &next = *std::prev(last_lost);
  const double behind = lost.challenger - lost.holder, ahead = next.holder - next.challenger;
  // Who cannot go has lost nothing up to there, or gains nothing before.
  if (!std::isfinite(behind) || !std::isfinite(ahead)) return next.bytes;
  const double share = behind / (behind + ahead), kibs = static_cast<double>((next.bytes - lost.bytes) / kib);
  return std::min(next.bytes, lost.bytes + kib * (static_cast<std::int64_t>(share * kibs) + 1));
}

}  // namespace imbrex::jobs
