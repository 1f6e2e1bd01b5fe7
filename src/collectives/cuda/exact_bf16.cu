#include "collectives/cuda/exact_kernels.cuh"

namespace imbrex::cuda {

const void* exact_kernel_bf16(std::uint32_t ranks, const ExactShape& shape) {
  return exact_kernel_of<Type::bf16>(ranks, shape);
}

}  // namespace imbrex::cuda
