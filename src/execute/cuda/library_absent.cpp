// A build without the headers of cuBLASLt or NCCL.
#include "execute/cuda/library_execution.hpp"
#include "imbrex/error.hpp"

namespace imbrex::cuda {

std::shared_ptr<Libraries> make_libraries(World&, StreamCalls&, int) {
  throw Error(ErrorCode::invalid_input,
              "this build of Imbrex has no library collectives: cublasLt.h or nccl.h was not found when it was "
              "configured (IMBREX_CUBLASLT_INCLUDE, IMBREX_NCCL_INCLUDE); use strategy fused");
}

}  // namespace imbrex::cuda
