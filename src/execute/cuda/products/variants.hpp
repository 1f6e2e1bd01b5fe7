// What the lines of variants.def are called, and the tiles that they compute: known in every build.
#pragma once

#include <cstdint>

#include "imbrex/types.hpp"

namespace imbrex::cuda {

struct KernelTile {
  const char* name;  ///< CudaOptions::kernel
  Type type;
  std::int64_t rows, cols;  ///< of a tile
  int cluster;              ///< blocks that share B, or K
  bool shares_k;            ///< Knobs::cluster_k
  bool hopper;              ///< else for other GPUs
};

/// The modes of variants.def.
struct BlockCluster {
  int blocks;
  bool shares_k;
};
namespace mode {
inline constexpr BlockCluster x1{1, false}, x2{2, false}, k2{2, true};
}

#define IMBREX_MODE_x1 " cluster 1"
#define IMBREX_MODE_x2 " cluster 2"
#define IMBREX_MODE_k2 " sharing K"
#define IMBREX_TYPE_bf16 ""
#define IMBREX_TYPE_fp16 " fp16"
#define IMBREX_TYPE_e4m3 " e4m3"
#define IMBREX_NAME_SM90(schedule, rows, columns, mode, type) \
#schedule " " #rows "x" #columns IMBREX_MODE_##mode IMBREX_TYPE_##type
#define IMBREX_NAME_SM80(rows, columns, mode, type) "sm80 " #rows "x" #columns IMBREX_TYPE_##type

/// Its kernels, of type GemmKernels (gemm.hpp). Behind the name of one for 16-bit B that lies by columns stands " nxk".
#define IMBREX_SYMBOL_SM90(schedule, rows, columns, mode, type) sm90_##schedule##_##rows##x##columns##_##mode##_##type
#define IMBREX_SYMBOL_SM80(rows, columns, mode, type) sm80_##rows##x##columns##_##type

inline constexpr KernelTile kernel_tiles[] = {
#define IMBREX_SM90(schedule, rows, columns, shared, type)  \
  {IMBREX_NAME_SM90(schedule, rows, columns, shared, type), \
   Type::type,                                              \
   rows,                                                    \
   columns,                                                 \
   mode::shared.blocks,                                     \
   mode::shared.shares_k,                                   \
   true},
#define IMBREX_SM80(rows, columns, shared, type) \
  {IMBREX_NAME_SM80(rows, columns, shared, type), Type::type, rows, columns, mode::shared.blocks, false, false},
#include "execute/cuda/products/variants.def"
};

}  // namespace imbrex::cuda
