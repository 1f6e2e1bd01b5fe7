// For GPU tests of plans that call libraries.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/libraries/cublas_lt.hpp"
#include "runtime/cuda/libraries/nccl.hpp"

namespace imbrex::test {

/// Why the libraries cannot be used; empty where they can.
inline std::string missing_library() {
  try {
    runtime::cublas_lt();
    runtime::nccl();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace imbrex::test

#define NEEDS_LIBRARIES                                                                                       \
  if (const std::string missing = imbrex::test::missing_library(); !missing.empty()) GTEST_SKIP() << missing; \
  if (imbrex::test::ranks_per_gpu() > 1 && !imbrex::test::ranks_are_processes()) GTEST_SKIP() << "threads share a GPU"
