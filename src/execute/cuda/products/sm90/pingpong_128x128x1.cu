#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_pingpong_128x128x1;
const GemmKernel sm90_pingpong_128x128x1 = sm90_kernel<Sm90Config<128, 128, 1, true>>("pingpong 128x128 cluster 1");

}  // namespace imbrex::cuda
