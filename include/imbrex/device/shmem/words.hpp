// Words of 1 to 16 bytes that PEs share: loads, stores, atomic operations and fences. On the device they are single
// instructions at the scope of the system, on the host atomic operations with the same meaning.
//
// Needs C++20 and nothing else of Imbrex but the files of its folder. Compiles as CUDA and as C++.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "imbrex/device/ordering.hpp"

namespace imbrex::shmem {

/// What one load or store moves.
template <typename T>
concept Scalar = std::is_trivially_copyable_v<T> &&
    (sizeof(T) == 1 || sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);

/// What can be waited for, and be changed bit by bit.
template <typename T>
concept Integer = std::is_integral_v<T> &&(sizeof(T) == 4 || sizeof(T) == 8);

/// What atomic operations change. Floating types have fetch, set, swap and add.
template <typename T>
concept Atomic = Integer<T> || std::is_same_v<T, float> || std::is_same_v<T, double>;

namespace words {

template <std::size_t bytes>
struct Bits;
template <>
struct Bits<1> {
  using Type = std::uint8_t;
};
template <>
struct Bits<2> {
  using Type = std::uint16_t;
};
template <>
struct Bits<4> {
  using Type = std::uint32_t;
};
template <>
struct Bits<8> {
  using Type = std::uint64_t;
};

/// The unsigned integer of T's size.
template <typename T>
using BitsOf = typename Bits<sizeof(T)>::Type;

/// CUDA's atomic functions have no `unsigned long`.
template <typename T>
using CudaBitsOf = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned int>;

/// The same value, which the compiler takes for any: what follows from it is computed here. Calls that a kernel seldom
/// makes would else keep in registers, all through the kernel, what they are going to need.
template <typename T>
IMBREX_DEVICE T here(T value) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 8)
    asm volatile("" : "+l"(value));
  else
    asm volatile("" : "+r"(value));
#endif
  return value;
}

template <typename To, typename From>
IMBREX_DEVICE To cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

// NOTE: PTX takes a volatile access for a relaxed one at the scope of the system.
template <Scalar T>
IMBREX_DEVICE T load(const T* address) {
#if defined(__CUDA_ARCH__)
  const BitsOf<T> bits = *reinterpret_cast<const volatile BitsOf<T>*>(address);
  return cast<T>(bits);
#else
  return cast<T>(device::word_at<BitsOf<T>>(address).load(std::memory_order_relaxed));
#endif
}

template <Scalar T>
IMBREX_DEVICE void store(T* address, T value) {
#if defined(__CUDA_ARCH__)
  *reinterpret_cast<volatile BitsOf<T>*>(address) = cast<BitsOf<T>>(value);
#else
  // NOTE: releases, as thread sanitizers know no fences.
  device::word_at<BitsOf<T>>(address).store(cast<BitsOf<T>>(value), std::memory_order_release);
#endif
}

/// What was written before the store, addition or other operation that this load sees is visible after the load.
template <Integer T>
IMBREX_DEVICE T load_acquire(const T* address) {
#if defined(__CUDA_ARCH__)
  if constexpr (sizeof(T) == 4) {
    return static_cast<T>(device::load_acquire(address));
  } else {
    std::uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return static_cast<T>(value);
  }
#else
  return static_cast<T>(device::word_at<BitsOf<T>>(address).load(std::memory_order_acquire));
#endif
}

/// Two words of 8 bytes that are never seen apart. Aligned to 16 bytes.
struct alignas(16) Pair {
  std::uint64_t first, second;
};

IMBREX_DEVICE Pair load_pair(const void* address) {
  Pair pair;
#if defined(__CUDA_ARCH__)
  asm volatile("{\n\t.reg .b128 both;\n\tld.relaxed.sys.global.b128 both, [%2];\n\tmov.b128 {%0, %1}, both;\n\t}"
               : "=l"(pair.first), "=l"(pair.second)
               : "l"(address)
               : "memory");
#elif defined(__x86_64__)
  // NOTE: the compilers' own function is a call of a library. Comparing with nothing stores what is there again.
  pair = {0, 0};
  asm volatile("lock cmpxchg16b %0"
               : "+m"(*static_cast<Pair*>(const_cast<void*>(address))), "+a"(pair.first), "+d"(pair.second)
               : "b"(std::uint64_t{0}), "c"(std::uint64_t{0})
               : "cc", "memory");
#else
  const auto both = __atomic_load_n(static_cast<const unsigned __int128*>(address), __ATOMIC_ACQUIRE);
  pair = {static_cast<std::uint64_t>(both), static_cast<std::uint64_t>(both >> 64)};
#endif
  return pair;
}

IMBREX_DEVICE void store_pair(void* address, Pair pair) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "{\n\t.reg .b128 both;\n\tmov.b128 both, {%1, %2};\n\tst.relaxed.sys.global.b128 [%0], both;\n\t}" ::"l"(address),
      "l"(pair.first), "l"(pair.second)
      : "memory");
#elif defined(__x86_64__)
  auto& there = *static_cast<Pair*>(address);
  Pair seen{0, 0};
  bool stored = false;
  while (!stored)
    asm volatile("lock cmpxchg16b %0"
                 : "+m"(there), "+a"(seen.first), "+d"(seen.second), "=@ccz"(stored)
                 : "b"(pair.first), "c"(pair.second)
                 : "memory");
#else
  __atomic_store_n(static_cast<unsigned __int128*>(address),
                   static_cast<unsigned __int128>(pair.second) << 64 | pair.first, __ATOMIC_RELEASE);
#endif
}

/// What this thread wrote, and what others wrote that it met at a barrier, is seen before what it writes afterwards.
IMBREX_DEVICE void fence() {
#if defined(__CUDA_ARCH__)
  device::fence_system();
#elif !defined(__SANITIZE_THREAD__)  // thread sanitizers know no fences; stores of words release by themselves
  std::atomic_thread_fence(std::memory_order_acq_rel);
#endif
}

/// Between all that this thread wrote, and what others wrote that it met at a barrier, and all that it reads
/// afterwards: a fence that is sequentially consistent, at the scope of the system.
IMBREX_DEVICE void full_fence() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.sc.sys;" ::: "memory");
#else
  // NOTE: thread sanitizers know no fences, but an exchange, which x86 takes for one.
  static thread_local std::atomic<int> word;
  word.exchange(0, std::memory_order_seq_cst);
#if !defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
#endif
}

// ------------------------------------------------------------------------------------------- atomic operations
// All are relaxed at the scope of the system; on the host they acquire and release.

template <Atomic T>
IMBREX_DEVICE T fetch_add(T* address, T value) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_floating_point_v<T>) {
    return atomicAdd_system(address, value);
  } else {
    using Cuda = CudaBitsOf<T>;
    return static_cast<T>(atomicAdd_system(reinterpret_cast<Cuda*>(address), static_cast<Cuda>(value)));
  }
#else
  if constexpr (std::is_floating_point_v<T>) {
    auto word = device::word_at<BitsOf<T>>(address);
    BitsOf<T> seen = word.load(std::memory_order_relaxed);
    while (!word.compare_exchange_weak(seen, cast<BitsOf<T>>(cast<T>(seen) + value), std::memory_order_acq_rel)) {
    }
    return cast<T>(seen);
  } else {
    return static_cast<T>(
        device::word_at<BitsOf<T>>(address).fetch_add(static_cast<BitsOf<T>>(value), std::memory_order_acq_rel));
  }
#endif
}

/// Without the value before: the GPU need not wait for it.
template <Atomic T>
IMBREX_DEVICE void add(T* address, T value) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<T, float>) {
    asm volatile("red.relaxed.sys.global.add.f32 [%0], %1;" ::"l"(address), "f"(value) : "memory");
  } else if constexpr (std::is_same_v<T, double>) {
    asm volatile("red.relaxed.sys.global.add.f64 [%0], %1;" ::"l"(address), "d"(value) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(address), "r"(static_cast<std::uint32_t>(value))
                 : "memory");
  } else {
    asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(address), "l"(static_cast<std::uint64_t>(value))
                 : "memory");
  }
#else
  fetch_add(address, value);
#endif
}

template <Atomic T>
IMBREX_DEVICE T swap(T* address, T value) {
#if defined(__CUDA_ARCH__)
  using Cuda = CudaBitsOf<T>;
  return cast<T>(atomicExch_system(reinterpret_cast<Cuda*>(address), cast<Cuda>(value)));
#else
  return cast<T>(device::word_at<BitsOf<T>>(address).exchange(cast<BitsOf<T>>(value), std::memory_order_acq_rel));
#endif
}

template <Integer T>
IMBREX_DEVICE T compare_swap(T* address, T expected, T value) {
#if defined(__CUDA_ARCH__)
  using Cuda = CudaBitsOf<T>;
  return static_cast<T>(
      atomicCAS_system(reinterpret_cast<Cuda*>(address), static_cast<Cuda>(expected), static_cast<Cuda>(value)));
#else
  auto seen = static_cast<BitsOf<T>>(expected);
  device::word_at<BitsOf<T>>(address).compare_exchange_strong(seen, static_cast<BitsOf<T>>(value),
                                                              std::memory_order_acq_rel);
  return static_cast<T>(seen);
#endif
}

template <Integer T>
IMBREX_DEVICE T fetch_and(T* address, T value) {
#if defined(__CUDA_ARCH__)
  using Cuda = CudaBitsOf<T>;
  return static_cast<T>(atomicAnd_system(reinterpret_cast<Cuda*>(address), static_cast<Cuda>(value)));
#else
  return static_cast<T>(
      device::word_at<BitsOf<T>>(address).fetch_and(static_cast<BitsOf<T>>(value), std::memory_order_acq_rel));
#endif
}

template <Integer T>
IMBREX_DEVICE T fetch_or(T* address, T value) {
#if defined(__CUDA_ARCH__)
  using Cuda = CudaBitsOf<T>;
  return static_cast<T>(atomicOr_system(reinterpret_cast<Cuda*>(address), static_cast<Cuda>(value)));
#else
  return static_cast<T>(
      device::word_at<BitsOf<T>>(address).fetch_or(static_cast<BitsOf<T>>(value), std::memory_order_acq_rel));
#endif
}

template <Integer T>
IMBREX_DEVICE T fetch_xor(T* address, T value) {
#if defined(__CUDA_ARCH__)
  using Cuda = CudaBitsOf<T>;
  return static_cast<T>(atomicXor_system(reinterpret_cast<Cuda*>(address), static_cast<Cuda>(value)));
#else
  return static_cast<T>(
      device::word_at<BitsOf<T>>(address).fetch_xor(static_cast<BitsOf<T>>(value), std::memory_order_acq_rel));
#endif
}

}  // namespace words
}  // namespace imbrex::shmem
