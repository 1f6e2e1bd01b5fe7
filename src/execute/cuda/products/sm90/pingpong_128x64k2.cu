#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_pingpong_128x64k2;
const GemmKernel sm90_pingpong_128x64k2 =
    sm90_kernel<Sm90Config<128, 64, 2, true, cutlass::bfloat16_t, Sharing::k>>("pingpong 128x64 sharing K");

}  // namespace imbrex::cuda
