// Checks on CUDA calls.
#pragma once

#include <cuda_runtime_api.h>

#include "base/check.hpp"

/// Evaluates a CUDA runtime call; throws Error(runtime_failure) naming it and its error.
#define IMBREX_CUDA_TRY(call)                                                                          \
  do {                                                                                                 \
    if (const cudaError_t imbrex_status = (call); imbrex_status != cudaSuccess) [[unlikely]]           \
      throw ::imbrex::Error(::imbrex::ErrorCode::runtime_failure,                                      \
                            ::fmt::format("{} failed: {}", #call, cudaGetErrorString(imbrex_status))); \
  } while (false)
