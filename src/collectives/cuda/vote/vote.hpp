// The vote before an all-reduce that is exact as a whole where one group could exceed the tolerance.
#pragma once

#include <cuda_runtime_api.h>

#include "collectives/cuda/wire/comm.hpp"
#include "imbrex/codec.hpp"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

/// By value into the kernel.
struct VoteArgs {
  Comm comm;
  const void* in;
  std::uint64_t count;
  std::uint32_t value_blocks;  ///< of quantized_block_values values, whole groups
  CodecPair pair;
  bool two_shot;
  float allowed;                ///< error of a part, or of the sums
  std::uint64_t source_stride;  ///< bytes between the slots of two sources
};

inline constexpr std::uint32_t vote_threads = 512;

const void* vote_kernel(Type type);

/// Loads every kernel: loading one after a kernel that waits for a peer can stop that peer.
void load_vote_kernels();

}  // namespace imbrex::cuda
