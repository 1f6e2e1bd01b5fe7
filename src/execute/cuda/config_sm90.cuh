// What tells the variants of the GEMM for Hopper apart.
#pragma once

#include <cutlass/numeric_types.h>

#include <type_traits>

#include "execute/cuda/fragment.cuh"
#include "execute/cuda/staged_rows.cuh"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

/// A variant: a tile of M x N, `Cluster` blocks that share B, and how the two consumer warpgroups divide the work:
/// whole tiles in turn (ping-pong), or halves of one tile (cooperative).
template <int M, int N, int Cluster, bool Pingpong, typename ElementType = cutlass::bfloat16_t>
struct Sm90Config {
  using Element = ElementType;
  static constexpr Type type = std::is_same_v<Element, cutlass::half_t>         ? Type::fp16
                               : std::is_same_v<Element, cutlass::float_e4m3_t> ? Type::e4m3
                                                                                : Type::bf16;
  /// Of results, and of peers' where they are not fp32.
  static constexpr Type narrow = output_type(type);
  static constexpr int tile_k = 128 / sizeof(Element);
  static constexpr int tile_m = M, tile_n = N, cluster = Cluster;
  static constexpr bool pingpong = Pingpong;
  static constexpr int group_threads = Pingpong ? 128 : 256;  ///< that share a tile
  static constexpr int registers = M * N / group_threads;
  using Tile = Fragment<narrow, N, registers, group_threads>;
  using Rows = StagedRows<narrow, Tile>;
  static constexpr int consumer_warps = 8;
  /// As many slices of 128 bytes of K as shared memory holds beside the warps' stages of rows and 1 KiB of barriers.
  static constexpr int stages = (227 * 1024 - 1024 - consumer_warps * Rows::bytes) / ((M + N) * 128);
};

}  // namespace imbrex::cuda
