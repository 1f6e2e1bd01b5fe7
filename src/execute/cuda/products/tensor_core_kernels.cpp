// Which variants are in this build.
#include "execute/cuda/products/gemm.hpp"

namespace imbrex::cuda {

#ifdef IMBREX_HAVE_CUTLASS
extern const GemmKernel sm90_pingpong_128x128x2, sm90_pingpong_128x128x1, sm90_pingpong_128x64x1,
    sm90_pingpong_64x192x2, sm90_pingpong_64x128x2, sm90_pingpong_64x128x1, sm90_pingpong_64x64x1,
    sm90_pingpong_64x32x1, sm90_pingpong_64x64k2, sm90_pingpong_64x192k2, sm90_pingpong_128x64k2,
    sm90_cooperative_128x256x2, sm90_cooperative_128x256x1, sm90_cooperative_128x224x2, sm90_cooperative_128x224x1,
    sm90_cooperative_128x192x2, sm90_cooperative_128x128x2, sm90_pingpong_128x128x2_fp16, sm90_pingpong_128x128x1_fp16,
    sm90_pingpong_64x64x1_fp16, sm90_cooperative_128x256x2_fp16, sm90_cooperative_128x128x2_e4m3,
    sm90_cooperative_128x128x1_e4m3, sm90_pingpong_64x128x1_e4m3, sm80_128x128, sm80_128x128_fp16;

const GemmKernel* const* tensor_core_kernels(std::size_t& count) {
  static const GemmKernel* const kernels[] = {&sm90_pingpong_128x128x2,
                                              &sm90_pingpong_128x128x1,
                                              &sm90_pingpong_128x64x1,
                                              &sm90_pingpong_64x192x2,
                                              &sm90_pingpong_64x128x2,
                                              &sm90_pingpong_64x128x1,
                                              &sm90_pingpong_64x64x1,
                                              &sm90_pingpong_64x32x1,
                                              &sm90_pingpong_64x64k2,
                                              &sm90_pingpong_64x192k2,
                                              &sm90_pingpong_128x64k2,
                                              &sm90_cooperative_128x256x2,
                                              &sm90_cooperative_128x256x1,
                                              &sm90_cooperative_128x224x2,
                                              &sm90_cooperative_128x224x1,
                                              &sm90_cooperative_128x192x2,
                                              &sm90_cooperative_128x128x2,
                                              &sm90_pingpong_128x128x2_fp16,
                                              &sm90_pingpong_128x128x1_fp16,
                                              &sm90_pingpong_64x64x1_fp16,
                                              &sm90_cooperative_128x256x2_fp16,
                                              &sm90_cooperative_128x128x2_e4m3,
                                              &sm90_cooperative_128x128x1_e4m3,
                                              &sm90_pingpong_64x128x1_e4m3,
                                              &sm80_128x128,
                                              &sm80_128x128_fp16};
  count = sizeof kernels / sizeof kernels[0];
  return kernels;
}
#else
const GemmKernel* const* tensor_core_kernels(std::size_t& count) {
  count = 0;
  return nullptr;
}
#endif

}  // namespace imbrex::cuda
