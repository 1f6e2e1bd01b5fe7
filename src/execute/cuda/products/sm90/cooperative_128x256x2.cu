#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_cooperative_128x256x2;
const GemmKernel sm90_cooperative_128x256x2 =
    sm90_kernel<Sm90Config<128, 256, 2, false>>("cooperative 128x256 cluster 2");

}  // namespace imbrex::cuda
