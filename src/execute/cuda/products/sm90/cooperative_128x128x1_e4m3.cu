#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_cooperative_128x128x1_e4m3;
const GemmKernel sm90_cooperative_128x128x1_e4m3 =
    sm90_kernel<Sm90Config<128, 128, 1, false, cutlass::float_e4m3_t>>("cooperative 128x128 cluster 1 e4m3");

}  // namespace imbrex::cuda
