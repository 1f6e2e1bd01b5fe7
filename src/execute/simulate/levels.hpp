// What groups of devices share on their way to other groups: switches, sockets.
#pragma once

#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::simulate {

/// The group of a level that a rank lies in.
int group_of(const Level& level, int rank);

/// Seconds that the groups' ways add between two ranks, out of one and into the other.
double way_latency(const Machine& machine, int from, int to);

/// Bytes that leave the busiest group of a level in a collective of these ranks, of which each sends `wire` bytes and
/// has a matrix of `whole`. An all-to-all sends each rank its part; what else there is runs in one ring, which crosses
/// between groups once. 0 where all ranks lie in one group.
double crossing_bytes(const Level& level, CollectiveKind kind, const std::vector<int>& ranks, double whole,
                      double wire);

}  // namespace imbrex::simulate
