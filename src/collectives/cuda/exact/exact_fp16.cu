#include "collectives/cuda/exact/exact_kernels.cuh"

namespace imbrex::cuda {

const void* exact_kernel_fp16(std::uint32_t ranks, const ExactShape& shape, bool report) {
  return exact_kernel_of<Type::fp16>(ranks, shape, report);
}

}  // namespace imbrex::cuda
