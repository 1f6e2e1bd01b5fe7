#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_pingpong_64x128x1_e4m3;
const GemmKernel sm90_pingpong_64x128x1_e4m3 =
    sm90_kernel<Sm90Config<64, 128, 1, true, cutlass::float_e4m3_t>>("pingpong 64x128 cluster 1 e4m3");

}  // namespace imbrex::cuda
