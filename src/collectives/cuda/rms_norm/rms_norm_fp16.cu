#include "collectives/cuda/rms_norm/rms_norm_kernels.cuh"

namespace imbrex::cuda {

const void* rms_norm_kernel_fp16(std::uint32_t ranks, ExactKernel kernel) {
  return rms_norm_kernel_of<Type::fp16>(ranks, kernel);
}

}  // namespace imbrex::cuda
