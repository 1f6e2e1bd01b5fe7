#include "program/sparse/cusparse.hpp"

namespace imbrex::program::sparse {

const Cusparse& cusparse() {
  static const Cusparse loaded = [] {
    const runtime::SharedLibrary library(fmt::format("libcusparse.so.{}", CUSPARSE_VER_MAJOR));
    Cusparse f;
    library.find(f.get_error_string, "cusparseGetErrorString");
    library.find(f.get_version, "cusparseGetVersion");
    library.find(f.create, "cusparseCreate");
    library.find(f.destroy, "cusparseDestroy");
    library.find(f.create_csr, "cusparseCreateCsr");
    library.find(f.matrix_set, "cusparseSpMatSetAttribute");
    library.find(f.destroy_matrix, "cusparseDestroySpMat");
    library.find(f.create_vector, "cusparseCreateDnVec");
    library.find(f.destroy_vector, "cusparseDestroyDnVec");
    library.find(f.solve_create, "cusparseSpSV_createDescr");
    library.find(f.solve_destroy, "cusparseSpSV_destroyDescr");
    library.find(f.solve_buffer_size, "cusparseSpSV_bufferSize");
    library.find(f.solve_analysis, "cusparseSpSV_analysis");
    library.find(f.solve, "cusparseSpSV_solve");
    return f;
  }();
  return loaded;
}

void check_cusparse(cusparseStatus_t status, const char* call) {
  if (status != CUSPARSE_STATUS_SUCCESS)
    throw Error(ErrorCode::runtime_failure,
                fmt::format("cuSPARSE {} failed: {}", call, cusparse().get_error_string(status)));
}

}  // namespace imbrex::program::sparse
