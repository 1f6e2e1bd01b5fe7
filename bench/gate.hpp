// A barrier between GPUs' streams, so that samples begin together to within some microseconds.
#pragma once

#include <cuda_runtime_api.h>

namespace imbrex::bench {

inline constexpr int max_gate_ranks = 64;

struct GateArgs {
  unsigned* flags[max_gate_ranks];  ///< by rank: max_gate_ranks words in its memory, which all ranks reach
  int rank, ranks;
  unsigned number;  ///< of the sample, from 1
};

/// Stream work that ends when every rank's has begun, or after five seconds.
cudaError_t pass_gate(const GateArgs& args, cudaStream_t stream);

}  // namespace imbrex::bench
