#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_pingpong_64x64x1_fp16;
const GemmKernel sm90_pingpong_64x64x1_fp16 =
    sm90_kernel<Sm90Config<64, 64, 1, true, cutlass::half_t>>("pingpong 64x64 cluster 1 fp16");

}  // namespace imbrex::cuda
