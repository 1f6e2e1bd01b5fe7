// Graphs of epochs that copy engines take part in. A copy's addresses are fixed when it is captured, but workspaces and
// counters alternate by epoch; so a graph of one such epoch could be replayed once. From the first captured call on, an
// execution skips every other epoch instead: all its epochs have the parity of the first one that was captured.
//
// Protocol. A rank whose epoch e is over adds to its own counters what the epoch e + 1 that it skips would have
// brought, tells all ranks by adding 1 to their `arrivals`, waits until all have told it, and goes on to epoch e + 2.
// So nobody writes into workspaces of epoch e that anybody still reads, which the skipped epoch would have seen to.
// `arrivals` counts on for ever, as signals do.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

/// Behind each rank's EpochState.
struct alignas(64) SkipState {
  std::uint32_t arrivals;  ///< added to by every rank
  std::uint32_t rounds;    ///< of this rank
  std::uint32_t unused[14];
};
static_assert(sizeof(SkipState) == 64 && offsetof(SkipState, rounds) == 4);

/// FaultRecord::state where a rank waited too long for all others' arrival: `count` ranks were awaited.
inline constexpr std::uint32_t fault_in_skip = 2;

struct SkipArgs {
  Protocol protocol;
  const std::uint32_t* posts;  ///< by signal of this rank, in one epoch
  std::uint32_t signals;
};

/// Ends an epoch that the kernel does not.
cudaError_t skip_epoch(const SkipArgs& args, cudaStream_t stream);

/// Loads the kernel.
cudaError_t load_skip_epoch();

}  // namespace imbrex::cuda
