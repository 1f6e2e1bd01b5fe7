#include "execute/cuda/gemm_sm90.cuh"

namespace imbrex::cuda {
namespace {

struct Config {
  using Element = cutlass::bfloat16_t;
  static constexpr Type type = Type::bf16;
  static constexpr int tile_m = 128, tile_n = 256, cluster = 1, stages = 4;
  static constexpr bool pingpong = false;
};

}  // namespace

extern const GemmKernel sm90_cooperative_128x256x1;
const GemmKernel sm90_cooperative_128x256x1 = sm90_kernel<Config>("cooperative 128x256 cluster 1");

}  // namespace imbrex::cuda
