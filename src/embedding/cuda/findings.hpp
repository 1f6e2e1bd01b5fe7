// What kernels found wrong with indices and offsets.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "embedding/cuda/look_up_args.hpp"

namespace imbrex::embedding {

/// Waits for the stream, and zeroes what it finds: throws as check_bags does, and gives the number of ignored indices.
/// `bags`, of the GPU, are the last launch's; `tables` are the host's.
std::int64_t take_findings(Findings* there, std::span<const Table> tables, const Bags& bags, cudaStream_t stream,
                           Misfits misfits);

}  // namespace imbrex::embedding
