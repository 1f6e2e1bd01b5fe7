// What tells the variants of the GEMM for Hopper apart.
#pragma once

#include <cutlass/numeric_types.h>

#include <type_traits>

#include "execute/cuda/products/fragment.cuh"
#include "execute/cuda/products/sm90/staged_rows.cuh"
#include "execute/cuda/tables/tile_shape.hpp"
#include "imbrex/operands.hpp"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

/// A variant: a tile of M x N, a cluster's blocks, what they share, and how the two consumer warpgroups divide the
/// work: whole tiles in turn (ping-pong), or halves of one tile (cooperative). BLayout: how B lies.
template <int M, int N, int Cluster, bool Pingpong, typename ElementType, Layout BLayout, Sharing Shared>
struct Sm90Config {
  using Element = ElementType;
  static constexpr Type type = std::is_same_v<Element, cutlass::half_t>         ? Type::fp16
                               : std::is_same_v<Element, cutlass::float_e4m3_t> ? Type::e4m3
                                                                                : Type::bf16;
  /// The type of results, and of peers' where they are not fp32.
  static constexpr Type narrow = output_type(type);
  /// A row of a slice of K: what barriers and the issue of loads cost a slice, 64 x 64 multiplies in half the time.
  static constexpr int row_bytes = M * N <= 64 * 64 ? 256 : 128;
  static constexpr int tile_k = row_bytes / static_cast<int>(sizeof(Element));
  static constexpr int tile_m = M, tile_n = N, cluster = Cluster;
  static constexpr Sharing sharing = Shared;
  static constexpr Layout b_layout = BLayout;
  static_assert(type != Type::e4m3 || b_layout == Layout::column_major,
                "wgmma takes 8-bit operands with K along memory");
  static constexpr bool pingpong = Pingpong;
  static constexpr int group_threads = Pingpong ? 128 : 256;  ///< that share a tile
  static constexpr int registers = M * N / group_threads;
  using Tile = Fragment<narrow, N, registers, group_threads>;
  using Rows = StagedRows<narrow, Tile>;
  static constexpr int consumer_warps = 8;
  /// Another block's sums.
  static constexpr int sum_bytes = Shared == Sharing::k ? M * N * 4 : 0;
  /// As many slices of K as shared memory holds beside those, the warps' stages of rows and 1 KiB of barriers.
  static constexpr int stages = (227 * 1024 - 1024 - consumer_warps * Rows::bytes - sum_bytes) / ((M + N) * row_bytes);

  /// The threads that share a tile meet, at one of the named barriers 1 and 2.
  __device__ __forceinline__ static void group_sync(int group) {
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "n"(group_threads) : "memory");
  }
};

}  // namespace imbrex::cuda
