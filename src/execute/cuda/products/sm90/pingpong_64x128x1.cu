#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_pingpong_64x128x1;
const GemmKernel sm90_pingpong_64x128x1 = sm90_kernel<Sm90Config<64, 128, 1, true>>("pingpong 64x128 cluster 1");

}  // namespace imbrex::cuda
