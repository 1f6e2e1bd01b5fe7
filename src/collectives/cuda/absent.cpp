// A build without CUDA.
#include "collectives/backend.hpp"
#include "collectives/put_back.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorCode::invalid_input, "this build of Imbrex has no CUDA parts; build it where nvcc is found");
}

}  // namespace

std::unique_ptr<collectives::AllReduceBackend> collectives::make_cuda_all_reduce(World&, std::int64_t, Type,
                                                                                 const AllReduceOptions&) {
  refuse();
}

std::unique_ptr<collectives::ExchangeBackend> collectives::make_cuda_exchange(World&, ExchangeKind, std::int64_t, Type,
                                                                              const ExchangeOptions&) {
  refuse();
}

std::unique_ptr<collectives::RmsNormBackend> collectives::make_cuda_all_reduce_rms_norm(
    World&, std::int64_t, std::int64_t, Type, const AllReduceRmsNormOptions&) {
  refuse();
}

bool collectives::are_on_gpus(World&) { return false; }
void collectives::check_gpus(World&) {}
void collectives::trim_gpus(World&) {}
void collectives::restore_gpus(World&) {}

void collectives::put_back_on_gpu(const RowWork&, CudaStream) { refuse(); }

}  // namespace imbrex
