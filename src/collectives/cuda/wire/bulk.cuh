// Copies from shared memory to a peer by cp.async.bulk, which leaves the SM's load-store units free: groups of
// them are counted by the thread that commits them. Every thread that wrote what one will read fences before it says so
// (device::fence_shared_for_bulk). And barriers in shared memory, by which emptied stages are handed
// back.
#pragma once

#include <cstddef>
#include <cstdint>

namespace imbrex::cuda {

/// Both addresses and `bytes`: multiples of 16.
__device__ __forceinline__ void bulk_store(std::byte* to, const std::byte* shared, std::uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(shared))), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/// Until all groups have read their source.
__device__ __forceinline__ void wait_bulk_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/// Waits until all groups have arrived; after a fence, a post to the receiver may follow.
__device__ __forceinline__ void wait_bulk() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// A phase of it ends with an arrival. By one thread; a barrier of the block follows.
__device__ __forceinline__ void init_stage_barrier(std::uint64_t& barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(&barrier)))
               : "memory");
}

/// By the thread whose copies have read the stage.
__device__ __forceinline__ void arrive_at(std::uint64_t& barrier) {
  asm volatile(
      "mbarrier.arrive.shared.b64 _, [%0];" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(&barrier)))
      : "memory");
}

/// Until phase `phase`, counted from 0, has ended; or at once where `phase` is -1. No phase but that one and the next
/// may be under way: so by those without whom the next one cannot end, one phase after the other.
__device__ __forceinline__ void await_phase(std::uint64_t& barrier, std::uint32_t phase) {
  asm volatile(
      "{\n"
      ".reg .pred ended;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 ended, [%0], %1;\n"
      "@!ended bra again;\n"
      "}\n" ::"r"(static_cast<std::uint32_t>(__cvta_generic_to_shared(&barrier))),
      "r"(phase & 1)
      : "memory");
}

}  // namespace imbrex::cuda
