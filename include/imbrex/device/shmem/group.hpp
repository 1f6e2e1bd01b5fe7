// Which threads work on a call together: one, a warp, a block, or a group of cooperative_groups.
#pragma once

#include <concepts>
#include <cstdint>

#include "imbrex/device/ordering.hpp"

namespace imbrex::shmem {

/// Threads of one block that make a call together, all of them with the same arguments. cooperative_groups' thread
/// blocks and tiles are some.
template <typename G>
concept ThreadGroup = requires(const G& group) {
  { group.thread_rank() } -> std::convertible_to<std::uint64_t>;
  { group.size() } -> std::convertible_to<std::uint64_t>;
  group.sync();
};

/// The calling thread.
struct Thread {
  IMBREX_DEVICE std::uint32_t thread_rank() const { return 0; }
  IMBREX_DEVICE std::uint32_t size() const { return 1; }
  IMBREX_DEVICE void sync() const {}
  IMBREX_DEVICE bool any(bool mine) const { return mine; }
};

/// The calling thread's warp, all of it. On the host one thread.
struct Warp {
#if defined(__CUDA_ARCH__)
  __device__ __forceinline__ std::uint32_t thread_rank() const {
    std::uint32_t lane;
    asm("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
  }
  __device__ __forceinline__ std::uint32_t size() const { return 32; }
  __device__ __forceinline__ void sync() const { __syncwarp(); }
  __device__ __forceinline__ bool any(bool mine) const { return __any_sync(0xffffffffu, mine); }
#else
  IMBREX_DEVICE std::uint32_t thread_rank() const { return 0; }
  IMBREX_DEVICE std::uint32_t size() const { return 1; }
  IMBREX_DEVICE void sync() const {}
  IMBREX_DEVICE bool any(bool mine) const { return mine; }
#endif
};

/// The calling thread's block, all of it. On the host one thread.
struct Block {
#if defined(__CUDA_ARCH__)
  __device__ __forceinline__ std::uint32_t thread_rank() const {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  }
  __device__ __forceinline__ std::uint32_t size() const { return blockDim.x * blockDim.y * blockDim.z; }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
  __device__ __forceinline__ bool any(bool mine) const { return __syncthreads_or(mine) != 0; }
#else
  IMBREX_DEVICE std::uint32_t thread_rank() const { return 0; }
  IMBREX_DEVICE std::uint32_t size() const { return 1; }
  IMBREX_DEVICE void sync() const {}
  IMBREX_DEVICE bool any(bool mine) const { return mine; }
#endif
};

/// Whether one thread of the group says so; they meet.
template <ThreadGroup G>
IMBREX_DEVICE bool any_of(const G& group, bool mine) {
  if constexpr (requires { group.any(mine); }) {
    return group.any(mine);
  } else {
#if defined(__CUDA_ARCH__)
    // A thread block of cooperative_groups has no vote of its own.
    static_assert(
        requires { group.group_index(); }, "this group of threads has no any(): it cannot wait together");
    return __syncthreads_or(mine) != 0;
#else
    return mine;
#endif
  }
}

template <ThreadGroup G>
IMBREX_DEVICE bool is_leader(const G& group) {
  return group.thread_rank() == 0;
}

}  // namespace imbrex::shmem
