// The exact all-reduce's kernels: what a launch is, and who has the kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "collectives/cuda/wire/comm.hpp"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

enum class ExactKernel : std::uint8_t {
  one_shot,  ///< every rank sends all its data to all, and adds for itself
  two_shot,  ///< every rank sums a part, and sends the sums to all
};

/// The shape of a launch, the same on all ranks.
struct ExactShape {
  ExactKernel kernel = ExactKernel::one_shot;
  std::uint32_t blocks = 0, threads = 0;
  std::uint32_t batch = 0;  ///< packets of a part that a thread has in flight: powers of two up to most_batch
  std::uint32_t slots = 0;  ///< two_shot: chunks that the slots hold at most; 0: most_exact_slots
};

/// Between two ranks a thread has one peer's packets on its way, and takes more of them.
constexpr std::uint32_t most_batch(std::uint32_t ranks) { return ranks == 2 ? 4 : 2; }

/// Where a call has more chunks than its slots hold, they hold no more than this.
inline constexpr std::uint32_t most_exact_slots = 8;

/// By value into the kernel.
struct ExactArgs {
  Comm comm;
  const void* in;
  void* out;
  std::uint64_t bytes;          ///< of in, and of out
  std::uint64_t packets;        ///< of 16 bytes, the last one may be partial
  std::uint64_t piece;          ///< two_shot: packets of each rank's part; the last ranks' may be shorter
  std::uint64_t source_stride;  ///< bytes between the slots of two sources
  std::uint32_t chunks;         ///< two_shot: that each block deals with
  std::uint32_t slots;          ///< two_shot: chunks that a block's slots hold
};

/// Null where there is no such kernel. `report`: it writes a CommReport.
const void* exact_kernel(Type type, std::uint32_t ranks, const ExactShape& shape, bool report);

}  // namespace imbrex::cuda
