// cuSPARSE's triangular solve, found at run time.
#pragma once

#include <cusparse.h>

#include "runtime/libraries/shared_library.hpp"

namespace imbrex::program::sparse {

struct Cusparse {
  decltype(&::cusparseGetErrorString) get_error_string = nullptr;
  decltype(&::cusparseGetVersion) get_version = nullptr;
  decltype(&::cusparseCreate) create = nullptr;
  decltype(&::cusparseDestroy) destroy = nullptr;
  decltype(&::cusparseCreateCsr) create_csr = nullptr;
  decltype(&::cusparseSpMatSetAttribute) matrix_set = nullptr;
  decltype(&::cusparseDestroySpMat) destroy_matrix = nullptr;
  decltype(&::cusparseCreateDnVec) create_vector = nullptr;
  decltype(&::cusparseDestroyDnVec) destroy_vector = nullptr;
  decltype(&::cusparseSpSV_createDescr) solve_create = nullptr;
  decltype(&::cusparseSpSV_destroyDescr) solve_destroy = nullptr;
  decltype(&::cusparseSpSV_bufferSize) solve_buffer_size = nullptr;
  decltype(&::cusparseSpSV_analysis) solve_analysis = nullptr;
  decltype(&::cusparseSpSV_solve) solve = nullptr;
};

/// Throws Error(runtime_failure) where the library of the version that Imbrex was built with cannot be loaded.
const Cusparse& cusparse();

/// Throws Error(runtime_failure) naming `call` and the library's error.
void check_cusparse(cusparseStatus_t status, const char* call);

}  // namespace imbrex::program::sparse

#define IMBREX_CUSPARSE_TRY(function, ...) \
  ::imbrex::program::sparse::check_cusparse(::imbrex::program::sparse::cusparse().function(__VA_ARGS__), #function)
