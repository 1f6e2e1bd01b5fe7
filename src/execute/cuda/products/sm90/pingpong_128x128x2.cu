#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_pingpong_128x128x2;
const GemmKernel sm90_pingpong_128x128x2 = sm90_kernel<Sm90Config<128, 128, 2, true>>("pingpong 128x128 cluster 2");

}  // namespace imbrex::cuda
