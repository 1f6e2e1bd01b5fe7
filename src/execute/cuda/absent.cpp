// A build without CUDA.
#include "imbrex/error.hpp"
#include "imbrex/execute.hpp"

namespace imbrex {

std::unique_ptr<Executor> make_cuda_executor(World&, const CudaOptions&) {
  throw Error(ErrorCode::invalid_input, "this build of Imbrex has no CUDA parts; build it where nvcc is found");
}

}  // namespace imbrex
