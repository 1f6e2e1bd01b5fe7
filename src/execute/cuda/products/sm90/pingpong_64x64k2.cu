#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_pingpong_64x64k2;
const GemmKernel sm90_pingpong_64x64k2 =
    sm90_kernel<Sm90Config<64, 64, 2, true, cutlass::bfloat16_t, Sharing::k>>("pingpong 64x64 sharing K");

}  // namespace imbrex::cuda
