#include "execute/cuda/gemm_sm90.cuh"

namespace imbrex::cuda {
namespace {

struct Config {
  using Element = cutlass::bfloat16_t;
  static constexpr Type type = Type::bf16;
  static constexpr int tile_m = 128, tile_n = 128, cluster = 2, stages = 6;
  static constexpr bool pingpong = true;
};

}  // namespace

extern const GemmKernel sm90_pingpong_128x128x2;
const GemmKernel sm90_pingpong_128x128x2 = sm90_kernel<Config>("pingpong 128x128 cluster 2");

}  // namespace imbrex::cuda
