#include "execute/simulate/levels.hpp"

#include <algorithm>
#include <map>

namespace imbrex::simulate {

int group_of(const Level& level, int rank) { return rank / static_cast<int>(level.devices); }

double way_latency(const Machine& machine, int from, int to) {
  double seconds = 0;
  for (const Level& level : machine.levels)
    if (group_of(level, from) != group_of(level, to)) seconds += 2 * level.latency;
  return seconds;
}

double crossing_bytes(const Level& level, CollectiveKind kind, const std::vector<int>& ranks, double whole,
                      double wire) {
  std::map<int, double> in_group;
  for (const int rank : ranks) ++in_group[group_of(level, rank)];
  if (in_group.size() < 2) return 0;
  if (kind != CollectiveKind::all_to_all) return wire;
  const auto all = static_cast<double>(ranks.size());
  double most = 0;
  for (const auto& [group, count] : in_group) most = std::max(most, count * whole * (all - count) / all);
  return most;
}

}  // namespace imbrex::simulate
