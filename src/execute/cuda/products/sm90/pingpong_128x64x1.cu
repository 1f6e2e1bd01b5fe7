#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_pingpong_128x64x1;
const GemmKernel sm90_pingpong_128x64x1 = sm90_kernel<Sm90Config<128, 64, 1, true>>("pingpong 128x64 cluster 1");

}  // namespace imbrex::cuda
