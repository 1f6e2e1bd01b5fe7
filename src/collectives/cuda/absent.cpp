// A build without CUDA.
#include "imbrex/collectives.hpp"
#include "imbrex/error.hpp"

namespace imbrex {

std::unique_ptr<AllReduce> make_cuda_all_reduce(World&, std::int64_t, Type, const AllReduceOptions&) {
  throw Error(ErrorCode::invalid_input, "this build of Imbrex has no CUDA parts; build it where nvcc is found");
}

}  // namespace imbrex
