// A lock of threads that take turns, by polls that the caller bounds. Zero at first.
#pragma once

#include "imbrex/device/ordering.hpp"

namespace imbrex::shmem {

/// Whether the calling thread has its turn now; what threads wrote in turns before is visible then.
IMBREX_DEVICE bool take_turn(std::uint32_t* lock) {
#if defined(__CUDA_ARCH__)
  std::uint32_t seen;
  asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], 0, 1;" : "=r"(seen) : "l"(lock) : "memory");
  return seen == 0;
#else
  return device::word_at<std::uint32_t>(lock).exchange(1, std::memory_order_acquire) == 0;
#endif
}

IMBREX_DEVICE void end_turn(std::uint32_t* lock) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.release.gpu.global.u32 [%0], 0;" ::"l"(lock) : "memory");
#else
  device::word_at<std::uint32_t>(lock).store(0, std::memory_order_release);
#endif
}

}  // namespace imbrex::shmem
