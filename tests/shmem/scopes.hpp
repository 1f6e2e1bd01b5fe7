// Groups that the suite's kernels work by, and how many of each a grid has.
#pragma once

#include <cstdint>

#include "imbrex/device/shmem.cuh"

#if defined(__CUDACC__)
#include <cooperative_groups.h>
#endif

namespace imbrex::shmem::test {

/// The group that the calling thread is in, the group's number in the block, and how many groups a block has.
template <typename G>
struct Scope;

#if defined(__CUDACC__)
inline constexpr std::uint32_t block_threads = 64;

template <std::uint32_t threads>
struct Parts {
  static constexpr std::uint32_t width = threads, each = block_threads / threads;
  IMBREX_DEVICE static std::uint32_t number() {
#if defined(__CUDA_ARCH__)
    return threadIdx.x / threads;
#else
    return 0;
#endif
  }
};
using Tile = cooperative_groups::thread_block_tile<8>;
using CudaBlock = cooperative_groups::thread_block;
#else
inline constexpr std::uint32_t block_threads = 1;

template <std::uint32_t threads>
struct Parts {
  static constexpr std::uint32_t width = threads, each = 1;
  static std::uint32_t number() { return 0; }
};
#endif

template <>
struct Scope<Thread> : Parts<1> {
  static constexpr const char* name = "Thread";
  IMBREX_DEVICE static Thread group() { return {}; }
};
template <>
struct Scope<Warp> : Parts<32> {
  static constexpr const char* name = "Warp";
  IMBREX_DEVICE static Warp group() { return {}; }
};
template <>
struct Scope<Block> : Parts<block_threads> {
  static constexpr const char* name = "Block";
  IMBREX_DEVICE static Block group() { return {}; }
};
template <>
struct Scope<Wide<Block>> : Parts<block_threads> {
  static constexpr const char* name = "Wide";
  IMBREX_DEVICE static Wide<Block> group() { return {}; }
};

#if defined(__CUDACC__)
template <>
struct Scope<Tile> : Parts<8> {
  static constexpr const char* name = "Tile";
  __device__ static Tile group() {
    return cooperative_groups::tiled_partition<8>(cooperative_groups::this_thread_block());
  }
};
template <>
struct Scope<CudaBlock> : Parts<block_threads> {
  static constexpr const char* name = "thread_block";
  __device__ static CudaBlock group() { return cooperative_groups::this_thread_block(); }
};
#endif

#if defined(__CUDACC__)
template <>
struct Scope<BulkBlock> : Parts<block_threads> {
  static constexpr const char* name = "BulkBlock";
  __device__ static BulkBlock group() {
    __shared__ alignas(128) std::byte stage[128 + 8 * 1024];  // small: its slots go round
    return {{}, stage, sizeof stage};
  }
};
#endif

/// Groups of a grid, and the calling thread's among them.
template <typename G>
IMBREX_DEVICE std::uint32_t groups(std::uint32_t blocks) {
  return blocks * Scope<G>::each;
}
template <typename G>
IMBREX_DEVICE std::uint32_t group_number() {
  return block_index() * Scope<G>::each + Scope<G>::number();
}

}  // namespace imbrex::shmem::test
