// What kernels found wrong with indices and offsets.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "embedding/cuda/look_up_args.hpp"

namespace imbrex::embedding {

/// Waits for the stream, and zeroes what it finds: throws as check_bags does, and gives the number of ignored indices.
/// It names one of several launches with misfits. `tables`: how many each launch had.
std::int64_t take_findings(Findings* there, std::int64_t tables, cudaStream_t stream, Misfits misfits);

}  // namespace imbrex::embedding
