// What a plan sends between hosts.
#pragma once

#include <cstdint>

#include "imbrex/plan.hpp"

namespace imbrex::program {

struct HostMessages {
  std::int64_t count = 0;
  double bytes = 0;
};

/// What ranks of different hosts send each other in an epoch, where they lie on `nodes` hosts, equally many on each,
/// those of a host with numbers that follow each other: a message a pair of ranks in an all-to-all; a step of the ring
/// between neighbours in other collectives; a transfer, and all that a task stores to one peer. Posts count no message.
HostMessages messages_between_hosts(const Plan& plan, int nodes);

}  // namespace imbrex::program
