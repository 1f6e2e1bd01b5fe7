// A build without CUDA.
#include "execute/cuda/libraries/library_suggestions.hpp"
#include "execute/cuda/world_executor.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

constexpr const char* why_not = "this build of Imbrex has no CUDA parts; build it where nvcc is found";

}  // namespace

std::unique_ptr<cuda::WorldExecutor> cuda::make_world_executor(World&, const CudaOptions&) {
  throw Error(ErrorCode::invalid_input, why_not);
}

std::unique_ptr<Executor> make_cuda_executor(World& world, const CudaOptions& options) {
  return cuda::make_world_executor(world, options);
}

cuda::QueuedCall::QueuedCall(World&, int, CudaStream) { throw Error(ErrorCode::invalid_input, why_not); }
void cuda::QueuedCall::end() {}

std::vector<LibraryAlgorithm> cuda::library_suggestions(const Problem&) {
  throw Error(ErrorCode::invalid_input, why_not);
}

}  // namespace imbrex
