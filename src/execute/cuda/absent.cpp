// A build without CUDA.
#include "execute/cuda/calls_and_outputs.hpp"
#include "execute/cuda/libraries/library_suggestions.hpp"
#include "execute/cuda/pooled_plans.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

constexpr const char* why_not = "this build of Imbrex has no CUDA parts; build it where nvcc is found";

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(World&, const CudaOptions&) {
  throw Error(ErrorCode::invalid_input, why_not);
}

std::unique_ptr<cuda::PooledPlans> cuda::pool_plans(Executor&, const std::function<std::vector<PlanToRun>()>&,
                                                    std::size_t, const std::function<void()>&) {
  throw Error(ErrorCode::invalid_input, why_not);
}

cuda::QueuedCall::QueuedCall(World&, int, CudaStream) { throw Error(ErrorCode::invalid_input, why_not); }
void cuda::QueuedCall::end() {}
void* cuda::output_at(Executor&, std::uint64_t) { throw Error(ErrorCode::invalid_input, why_not); }
bool cuda::has_captures(Executor&) { throw Error(ErrorCode::invalid_input, why_not); }
void cuda::await_calls(Executor&) { throw Error(ErrorCode::invalid_input, why_not); }
void cuda::trim(Executor&) { throw Error(ErrorCode::invalid_input, why_not); }
void cuda::restore(Executor&) { throw Error(ErrorCode::invalid_input, why_not); }

std::vector<LibraryAlgorithm> cuda::library_suggestions(const Problem&) {
  throw Error(ErrorCode::invalid_input, why_not);
}

}  // namespace imbrex
