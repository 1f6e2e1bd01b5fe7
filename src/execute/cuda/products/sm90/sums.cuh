// How two blocks that share a tile's K bring their sums together, in the GEMM for Hopper.
#pragma once

#include <cutlass/arch/barrier.h>

#include <cstdint>
#include <cute/arch/cluster_sm90.hpp>

#include "execute/cuda/products/sm90/config.cuh"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {

/// The second block of a cluster stores its sums to the first one's shared memory, which adds them to its own: always
/// own ones first, so that the result's bits do not depend on who came first. Tiles are counted in the order in which
/// both blocks take them; those with even and odd numbers have barriers of their own, since in ping-pong two groups
/// wait at the same time, and a barrier tells its rounds apart by parity only.
template <typename Config>
struct Sm90Sums {
  static constexpr int quads = Config::registers / 4;
  static constexpr std::uint32_t bytes = Config::sum_bytes;

  struct Storage {
    alignas(16) uint4 sums[quads][Config::group_threads];
    cutlass::arch::ClusterTransactionBarrier full[2];  ///< of the first block: a tile's sums have come
    cutlass::arch::ClusterBarrier free[2];             ///< of the second: the place for a tile's sums is free
    std::uint32_t failed;                              ///< of the first: not 0 once the second gave up a wait
  };

  /// By one thread of each block, before its cluster meets.
  __device__ __forceinline__ static void init(Storage& storage) {
    storage.failed = 0;
    for (int i = 0; i < 2; ++i) {
      storage.full[i].init(1);
      storage.free[i].init(1);
    }
  }

  /// By one thread of the first block, once the cluster has met: the second may store the first tile's.
  __device__ __forceinline__ static void begin(Storage& storage) {
    for (int i = 0; i < 2; ++i) storage.full[i].arrive_and_expect_tx(bytes);
    storage.free[0].arrive(1u);
  }

  /// By the threads of the second block that share the tile.
  __device__ __forceinline__ static void send(const float (&acc)[Config::registers], Storage& storage,
                                              std::uint32_t tile, std::uint32_t thread) {
    storage.free[tile % 2].wait(tile / 2 % 2);
    const std::uint32_t barrier = in_first_block(&storage.full[tile % 2]),
                        to = in_first_block(&storage.sums[0][thread]);
#pragma unroll
    for (int i = 0; i < quads; ++i)
      asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                       to + i * Config::group_threads * 16),
                   "f"(acc[4 * i]), "f"(acc[4 * i + 1]), "f"(acc[4 * i + 2]), "f"(acc[4 * i + 3]), "r"(barrier)
                   : "memory");
  }

  /// By the threads of the first block that share the tile. `group`: for their barrier. Whether the second block had
  /// given up what it waited for.
  __device__ __forceinline__ static bool add(float (&acc)[Config::registers], Storage& storage, std::uint32_t tile,
                                             std::uint32_t thread, int group) {
    storage.full[tile % 2].wait(tile / 2 % 2);
#pragma unroll
    for (int i = 0; i < quads; ++i) {
      if (i % 4 == 0) __syncwarp();  // nothing is loaded ahead of this: all at once would not fit the registers
      const uint4 other = storage.sums[i][thread];
      acc[4 * i] += __uint_as_float(other.x);
      acc[4 * i + 1] += __uint_as_float(other.y);
      acc[4 * i + 2] += __uint_as_float(other.z);
      acc[4 * i + 3] += __uint_as_float(other.w);
    }
    Config::group_sync(group);
    if (thread == 0) {
      storage.full[tile % 2].arrive_and_expect_tx(bytes);
      storage.free[(tile + 1) % 2].arrive(1u);
    }
    return *const_cast<const volatile std::uint32_t*>(&storage.failed) != 0u;
  }

  /// By a thread of the second block that gave up, before anything of what it waited for is multiplied: what the first
  /// one adds to its own sums is not to be stored.
  __device__ __forceinline__ static void fail(Storage& storage) {
    asm volatile("st.shared::cluster.u32 [%0], %1;\nfence.acq_rel.cluster;" ::"r"(in_first_block(&storage.failed)),
                 "r"(1u)
                 : "memory");
  }

  /// By whole warps, those that multiply: a block must not end while the other may still reach into it. Not relaxed: in
  /// a cluster without tiles, `begin` has just told the second block that the place is free.
  __device__ __forceinline__ static void end() {
    cute::cluster_arrive();
    cute::cluster_wait();
  }

 private:
  __device__ __forceinline__ static std::uint32_t in_first_block(const void* own) {
    return cute::set_block_rank(cute::cast_smem_ptr_to_uint(own), 0);
  }
};

/// For kernels whose blocks share no tile's K.
struct NoSums {
  struct Storage {};
};

}  // namespace imbrex::cuda
