// Words that several GPUs share: how they are read, written and ordered. On the device these are single instructions of
// PTX at the scope of the system. On the host they are atomic operations with the same meaning. So protocols written
// with them also run in threads, where they are tested.
//
// Needs C++20 and nothing else of Imbrex. Compiles as CUDA and as C++.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__CUDA_ARCH__)
#include <atomic>
#include <chrono>
#include <thread>
#endif

#if defined(__CUDACC__)
#define IMBREX_DEVICE __host__ __device__ __forceinline__
#else
#define IMBREX_DEVICE inline
#endif

namespace imbrex::device {

#if !defined(__CUDA_ARCH__)
template <typename T>
inline std::atomic_ref<T> word_at(const volatile void* address) {
  return std::atomic_ref<T>(*static_cast<T*>(const_cast<void*>(address)));
}
#endif

/// What was written before the store or addition that this load sees is visible after the load.
IMBREX_DEVICE std::uint32_t load_acquire(const void* address) {
#if defined(__CUDA_ARCH__)
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(address) : "memory");
  return value;
#else
  return word_at<std::uint32_t>(address).load(std::memory_order_acquire);
#endif
}

/// The word as it is now, in any memory.
IMBREX_DEVICE std::uint32_t load_relaxed(const volatile void* address) {
#if defined(__CUDA_ARCH__)
  return *static_cast<const volatile std::uint32_t*>(address);
#else
  return word_at<std::uint32_t>(address).load(std::memory_order_relaxed);
#endif
}

/// After fence_system, a release.
IMBREX_DEVICE void store_relaxed(void* address, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
#else
  word_at<std::uint32_t>(address).store(value, std::memory_order_release);
#endif
}

/// After fence_system, a release.
IMBREX_DEVICE void add_relaxed(void* address, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
#else
  word_at<std::uint32_t>(address).fetch_add(value, std::memory_order_release);
#endif
}

/// What this thread wrote, and what others wrote that it met at a barrier, becomes visible before what it stores or
/// adds after the fence.
// NOTE: on the host nothing: what follows it releases by itself, as thread sanitizers know no fences.
IMBREX_DEVICE void fence_system() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

/// Orders what other threads' ordinary stores brought, seen by an acquire, before this thread's loads by
/// cp.async.bulk and the TMA (async proxy). Hopper.
// NOTE: without the memory named it would be a fence of the whole GPU, too, and wait for this thread's own stores.
IMBREX_DEVICE void fence_before_bulk_loads() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

/// Orders this thread's accesses to shared memory, and those before what it waited for, before what
/// cp.async.bulk reads or writes there. Hopper.
IMBREX_DEVICE void fence_shared_for_bulk() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/// The launch may have come before the stream's previous kernel has ended: nothing is read or written before this.
IMBREX_DEVICE void wait_for_stream() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Nanoseconds of the GPU's global timer, or the host's steady clock.
IMBREX_DEVICE std::uint64_t now_ns() {
#if defined(__CUDA_ARCH__)
  std::uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
#else
  return static_cast<std::uint64_t>(
      std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count());
#endif
}

/// Leaves the SM to other warps for about so long.
IMBREX_DEVICE void pause_ns([[maybe_unused]] std::uint32_t nanoseconds) {
#if defined(__CUDA_ARCH__)
  __nanosleep(nanoseconds);
#else
  std::this_thread::yield();
#endif
}

}  // namespace imbrex::device
