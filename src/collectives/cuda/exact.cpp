#include "collectives/cuda/exact.hpp"

#include "collectives/cuda/cuda_collectives.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

const void* exact_kernel_bf16(std::uint32_t ranks, const ExactShape& shape, bool report);
const void* exact_kernel_fp16(std::uint32_t ranks, const ExactShape& shape, bool report);
const void* exact_kernel_fp32(std::uint32_t ranks, const ExactShape& shape, bool report);

const void* exact_kernel(Type type, std::uint32_t ranks, const ExactShape& shape, bool report) {
  return type == Type::bf16   ? exact_kernel_bf16(ranks, shape, report)
         : type == Type::fp16 ? exact_kernel_fp16(ranks, shape, report)
                              : exact_kernel_fp32(ranks, shape, report);
}

void load_exact_kernels() {
  for (const Type type : {Type::bf16, Type::fp16, Type::fp32})
    for (const std::uint32_t ranks : {2u, 4u, max_comm_ranks})
      for (const ExactShape& shape :
           {ExactShape{ExactKernel::one_shot, 1, 32, 1}, ExactShape{ExactKernel::two_shot, 1, 32, 1},
            ExactShape{ExactKernel::two_shot, 1, 32, 2}})
        for (const bool report : {false, true}) {
          cudaFuncAttributes attributes{};
          IMBREX_CUDA_TRY(cudaFuncGetAttributes(&attributes, exact_kernel(type, ranks, shape, report)));
        }
}

}  // namespace imbrex::cuda
