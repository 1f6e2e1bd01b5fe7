// Instructions of 64 x 224: without this, CUTLASS takes narrower ones, half as fast.
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
#include "execute/cuda/products/sm90/launch.cuh"

namespace imbrex::cuda {

extern const GemmKernel sm90_cooperative_128x224x2;
const GemmKernel sm90_cooperative_128x224x2 =
    sm90_kernel<Sm90Config<128, 224, 2, false>>("cooperative 128x224 cluster 2");

}  // namespace imbrex::cuda
