// A build without CUDA.
#include "imbrex/error.hpp"
#include "program/measure/cuda/all_reduce_sweep.hpp"

namespace imbrex::program {

void sweep_all_reduces(World&, const AllReduceMeasureRequest&,
                       const std::function<void(const AllReduceMeasurement&)>&) {
  throw Error(ErrorCode::invalid_input, "this build of Imbrex has no CUDA parts; build it where nvcc is found");
}

}  // namespace imbrex::program
