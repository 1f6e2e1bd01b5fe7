#include "runtime/cuda/libraries/cublas_lt.hpp"

namespace imbrex::runtime {

const CublasLt& cublas_lt() {
  static const CublasLt loaded = [] {
    // Structures and enumerations may change from one major version to the next.
    const SharedLibrary library(fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR));
    CublasLt f;
    library.find(f.get_status_string, "cublasLtGetStatusString");
    library.find(f.create, "cublasLtCreate");
    library.find(f.destroy, "cublasLtDestroy");
    library.find(f.desc_create, "cublasLtMatmulDescCreate");
    library.find(f.desc_destroy, "cublasLtMatmulDescDestroy");
    library.find(f.desc_set, "cublasLtMatmulDescSetAttribute");
    library.find(f.layout_create, "cublasLtMatrixLayoutCreate");
    library.find(f.layout_destroy, "cublasLtMatrixLayoutDestroy");
    library.find(f.layout_set, "cublasLtMatrixLayoutSetAttribute");
    library.find(f.preference_create, "cublasLtMatmulPreferenceCreate");
    library.find(f.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    library.find(f.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    library.find(f.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    library.find(f.algo_get, "cublasLtMatmulAlgoConfigGetAttribute");
    library.find(f.matmul, "cublasLtMatmul");
    return f;
  }();
  return loaded;
}

void check_cublas_lt(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("cuBLASLt {} failed: {}", call, cublas_lt().get_status_string(status)));
}

}  // namespace imbrex::runtime
