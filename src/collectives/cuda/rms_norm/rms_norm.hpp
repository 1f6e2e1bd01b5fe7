// The all-reduce with residual and RMSNorm: what a launch is, and who has the kernels.
#pragma once

#include <cuda_runtime_api.h>

#include "collectives/cuda/exact/exact.hpp"
#include "collectives/cuda/wire/comm.hpp"
#include "collectives/rms_norm.hpp"

namespace imbrex::cuda {

/// By value into the kernel.
struct RmsNormArgs {
  Comm comm;
  const void *in, *residual, *weight;  ///< residual: null for none
  void *residual_out, *out;
  std::uint64_t rows;
  std::uint64_t row_bytes;
  collectives::RowShape row;
  float hidden, eps;
  std::uint64_t piece;          ///< two_shot: rows of each rank's part; the last ranks' may be fewer
  std::uint64_t source_stride;  ///< bytes between the slots of two sources
  std::uint32_t groups;         ///< rows that a block takes at once, each by row.threads threads
  std::uint32_t cluster;        ///< blocks that share a row's threads; more than 1: `groups` is 1
  std::uint32_t chunks;         ///< two_shot: that each cluster deals with, of `groups` rows of every piece
  std::uint32_t slots;          ///< two_shot: chunks that a block's slots hold
  bool fp32_weight;             ///< the weight is fp32, and the rows are not
};

inline constexpr std::uint32_t most_row_blocks = 8;

const void* rms_norm_kernel(Type type, std::uint32_t ranks, ExactKernel kernel);

/// Loads every kernel: loading one after a kernel that waits for a peer can stop that peer.
void load_rms_norm_kernels();

}  // namespace imbrex::cuda
