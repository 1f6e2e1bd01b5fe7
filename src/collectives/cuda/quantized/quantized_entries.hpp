// The kernels of each source, one source for each few forms: they take long to compile.
#pragma once

#include <span>

#include "collectives/cuda/quantized/quantized.hpp"

namespace imbrex::cuda {

/// Kernels of a pair of forms: each for 2 ranks, for up to 4, for up to 8.
struct QuantizedEntry {
  CodecPair pair;  ///< its groups do not count
  QuantizedKernel staged[3];
  const void* packets[3];
};

#define IMBREX_QUANTIZED(source, ...) std::span<const QuantizedEntry> quantized_##source();
#include "collectives/cuda/quantized/quantized_entries.def"

/// Take any form.
const void* quantized_any_bf16();
const void* quantized_any_fp16();
const void* quantized_any_fp32();
const void* quantized_one_shot_bf16();
const void* quantized_one_shot_fp16();
const void* quantized_one_shot_fp32();
const void* quantized_ring_bf16();
const void* quantized_ring_fp16();
const void* quantized_ring_fp32();
const void* quantized_exchange_bf16(ExchangeKind kind);
const void* quantized_exchange_fp16(ExchangeKind kind);
const void* quantized_exchange_fp32(ExchangeKind kind);

}  // namespace imbrex::cuda
