// Copies from shared memory to a peer by the bulk engine, which leaves the loads and stores of the SM alone. Groups of
// them are counted by the thread that commits them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace imbrex::cuda {

/// By every thread that wrote into shared memory what a bulk copy will read, before it says so.
__device__ __forceinline__ void fence_for_bulk() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Both addresses and `bytes`: multiples of 16.
__device__ __forceinline__ void bulk_store(std::byte* to, const std::byte* shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Until all but the last `Left` groups have read their source.
template <int Left>
__device__ __forceinline__ void wait_bulk_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Left) : "memory");
}

/// Until all but the last `Left` groups have arrived; with a fence behind it, a post to the receiver may follow.
template <int Left>
__device__ __forceinline__ void wait_bulk() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Left) : "memory");
}

}  // namespace imbrex::cuda
