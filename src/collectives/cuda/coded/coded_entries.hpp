// The kernels of each source, one source for each few forms: they take long to compile.
#pragma once

#include <span>

#include "collectives/cuda/coded/coded.hpp"

namespace imbrex::cuda {

/// Kernels of a pair of forms: each for 2 ranks, for up to 4, for up to 8.
struct CodedEntry {
  CodecPair pair;  ///< its groups do not count
  CodedKernel staged[3];
  const void* packets[3];
};

#define IMBREX_CODED(source, ...) std::span<const CodedEntry> coded_##source();
#include "collectives/cuda/coded/coded_entries.def"

/// Take any form.
const void* coded_any_bf16();
const void* coded_any_fp16();
const void* coded_any_fp32();
const void* coded_one_shot_bf16();
const void* coded_one_shot_fp16();
const void* coded_one_shot_fp32();
const void* coded_ring_bf16();
const void* coded_ring_fp16();
const void* coded_ring_fp32();
const void* coded_exchange_bf16(ExchangeKind kind);
const void* coded_exchange_fp16(ExchangeKind kind);
const void* coded_exchange_fp32(ExchangeKind kind);

}  // namespace imbrex::cuda
