// Ranks on several hosts, whose links are slower than those inside.
#pragma once

#include <vector>

#include "imbrex/machine.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::simulate {

/// The host that a rank lies on; 0 on a machine that knows no hosts.
int host_of(const Machine& machine, int rank);

/// What each rank of a collective sends, by the links that this goes over.
struct CollectiveWire {
  double inside = 0;    ///< bytes on the links of its host
  double across = 0;    ///< and on those between hosts
  double messages = 0;  ///< that make up `across`
};

/// The matrices have `whole` bytes. An all-to-all sends each rank its part. What else there is runs in rings, as many
/// as a host has ranks in the collective, each of which crosses between hosts with its share of the bytes.
CollectiveWire wire_of(const Machine& machine, CollectiveKind kind, const std::vector<int>& ranks, double whole);

/// Seconds that the part between hosts takes; `launch`: those of a collective that sends hardly anything.
double across_seconds(const Machine& machine, const CollectiveWire& wire, double launch);

}  // namespace imbrex::simulate
