// The kernels of reduce-scatter, all-gather and all-to-all.
#pragma once

#include <cuda_runtime_api.h>

#include "collectives/cuda/wire/comm.hpp"
#include "imbrex/collectives.hpp"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

/// By value into the kernel: a stretch of every block.
struct ExchangeArgs {
  Comm comm;
  const void* in;  ///< the stretch of block 0
  void* out;
  std::uint64_t bytes;          ///< of the stretch
  std::uint64_t block_bytes;    ///< from one block to the next
  std::uint64_t source_stride;  ///< bytes between the slots of two sources
  bool continues;               ///< the call of which the epoch before was a part
};

inline constexpr std::uint32_t most_exchange_threads = 256;

/// `report`: it writes a CommReport.
const void* exchange_kernel(ExchangeKind kind, Type type, std::uint32_t ranks, bool report);

/// Loads every kernel: loading one after a kernel that waits for a peer can stop that peer.
void load_exchange_kernels();

}  // namespace imbrex::cuda
