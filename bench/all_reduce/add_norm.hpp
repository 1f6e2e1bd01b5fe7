// What serving engines run behind an all-reduce: add the residual, normalise. To compare the fused kernel with.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "imbrex/types.hpp"

namespace imbrex {

/// residual_out = sum + residual, out = residual_out over its rows' root mean square, times weight. Rows
/// are whole packets of 16 bytes, at addresses that are multiples of 16. `out` may be `sum`. `early`: its blocks may
/// come before what is queued ahead has ended. Where ranks share a GPU they may not: they would hold places that
/// another rank's all-reduce needs, for which this rank's waits.
void add_and_norm(const void* sum, const void* residual, const void* weight, void* residual_out, void* out,
                  std::int64_t rows, std::int64_t hidden, float eps, Type type, cudaStream_t stream, bool early);

}  // namespace imbrex
