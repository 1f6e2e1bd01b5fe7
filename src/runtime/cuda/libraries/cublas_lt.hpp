// cuBLASLt, found at run time.
#pragma once

#include <cublasLt.h>

#include "runtime/libraries/shared_library.hpp"

namespace imbrex::runtime {

struct CublasLt {
  decltype(&::cublasLtGetStatusString) get_status_string = nullptr;
  decltype(&::cublasLtCreate) create = nullptr;
  decltype(&::cublasLtDestroy) destroy = nullptr;
  decltype(&::cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&::cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&::cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&::cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&::cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&::cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&::cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&::cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&::cublasLtMatmulAlgoConfigGetAttribute) algo_get = nullptr;
  decltype(&::cublasLtMatmul) matmul = nullptr;
};

/// Throws Error(runtime_failure) where the library of the version that Imbrex was built with cannot be loaded.
const CublasLt& cublas_lt();

/// Throws Error(runtime_failure) naming `call` and the library's error.
void check_cublas_lt(cublasStatus_t status, const char* call);

}  // namespace imbrex::runtime

#define IMBREX_CUBLASLT_TRY(function, ...) \
  ::imbrex::runtime::check_cublas_lt(::imbrex::runtime::cublas_lt().function(__VA_ARGS__), #function)
