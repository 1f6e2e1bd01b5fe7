// Which threads work on a call together: one, a warp, a block, or a group of cooperative_groups.
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

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

/// The calling thread's warp, all 32 threads of it. On the host one thread.
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
    // NOTE: volatile, so that a call that is seldom made does not keep it in registers.
    std::uint32_t x, y, z;
    asm volatile("mov.u32 %0, %%tid.x;\n\tmov.u32 %1, %%tid.y;\n\tmov.u32 %2, %%tid.z;" : "=r"(x), "=r"(y), "=r"(z));
    return x + blockDim.x * (y + blockDim.y * z);
  }
  __device__ __forceinline__ std::uint32_t size() const {
    std::uint32_t x, y, z;
    asm volatile("mov.u32 %0, %%ntid.x;\n\tmov.u32 %1, %%ntid.y;\n\tmov.u32 %2, %%ntid.z;" : "=r"(x), "=r"(y), "=r"(z));
    return x * y * z;
  }
  __device__ __forceinline__ void sync() const { __syncthreads(); }
#else
  IMBREX_DEVICE std::uint32_t thread_rank() const { return 0; }
  IMBREX_DEVICE std::uint32_t size() const { return 1; }
  IMBREX_DEVICE void sync() const {}
#endif
};

/// A group whose threads have more loads under way than two when they copy: more bytes a second by few threads, and
/// more registers.
template <ThreadGroup G, int lines = 8>
struct Wide : G {
  static constexpr int lines_in_flight = lines;
};

/// Whether one thread of the group says so; they meet, and what one has seen before, all see afterwards.
template <ThreadGroup G>
IMBREX_DEVICE bool any_of(const G& group, bool mine) {
  if constexpr (requires { group.any(mine); }) {
    const bool one = group.any(mine);
    group.sync();  // a vote orders no memory
    return one;
  } else {
#if defined(__CUDA_ARCH__)
    // Blocks, also those of cooperative_groups, vote at a barrier.
    static_assert(
        std::is_base_of_v<Block, G> || requires { group.group_index(); },
        "this group of threads has no any(): it cannot wait together");
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
