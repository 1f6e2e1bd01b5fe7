// Graphs of epochs that copy engines take part in. A copy's addresses are fixed when it is captured, but workspaces and
// counters alternate by epoch; so a graph of one such epoch could be replayed once. From the first captured call on, an
// execution skips every other epoch instead: all its epochs have the parity of the first one that was captured.
//
// Protocol. A rank whose epoch e is over adds to its own counters what the epoch e + 1 that it skips would have
// brought, tells all ranks by adding 1 to their `arrivals`, waits until all have told it, and goes on to epoch e + 2.
// So no rank writes into workspaces of epoch e that another one still reads, which the skipped epoch would have
// ensured. `arrivals` counts on for ever, as signals do.
#pragma once

#include <cuda_runtime_api.h>

#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

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
