// A build without the headers of cuBLASLt or NCCL.
#include "execute/cuda/lanes/libraries.hpp"
#include "execute/cuda/libraries/library_suggestions.hpp"
#include "imbrex/error.hpp"

namespace imbrex::cuda {
namespace {

constexpr const char* why_not =
    "this build of Imbrex has no library collectives: cublasLt.h or nccl.h was not found when it was configured "
    "(IMBREX_CUBLASLT_INCLUDE, IMBREX_NCCL_INCLUDE); use strategy fused";

}  // namespace

std::shared_ptr<Libraries> make_libraries(World&, StreamCalls&, int, int) {
  throw Error(ErrorCode::invalid_input, why_not);
}

std::vector<LibraryAlgorithm> library_suggestions(const Problem&) { throw Error(ErrorCode::invalid_input, why_not); }

}  // namespace imbrex::cuda
