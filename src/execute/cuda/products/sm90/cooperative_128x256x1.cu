#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_cooperative_128x256x1;
const GemmKernel sm90_cooperative_128x256x1 =
    sm90_kernel<Sm90Config<128, 256, 1, false>>("cooperative 128x256 cluster 1");

}  // namespace imbrex::cuda
