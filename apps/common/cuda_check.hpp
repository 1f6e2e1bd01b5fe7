// Checks of CUDA calls.
#pragma once

#include <cuda_runtime_api.h>

#include <fmt/format.h>

#include "imbrex/error.hpp"

namespace imbrex::apps {

/// Throws Error(runtime_failure) naming the call, unless `status` is success.
inline void expect_cuda(cudaError_t status, const char* call) {
  if (status != cudaSuccess) [[unlikely]]
    throw Error(ErrorCode::runtime_failure, fmt::format("{} failed: {}", call, cudaGetErrorString(status)));
}

}  // namespace imbrex::apps
