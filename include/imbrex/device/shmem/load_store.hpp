// The transport to PEs on the same host: their memory is mapped, and loads and stores reach it.
//
// A transport is what a Context moves bytes by. Each has these functions, for addresses in this PE's part of the heap
// that stand for the same place in a peer's, and does nothing else: ranges, waits and what is left out of OpenSHMEM are
// not its business. All threads of a group make a call together; it returns, to each, when its own share is issued.
#pragma once

#include "imbrex/device/shmem/group.hpp"
#include "imbrex/device/shmem/handle.hpp"

namespace imbrex::shmem {

// Copies of a group's threads. `Far`: the source may be changed by others meanwhile, and is not read through caches
// that would not see it.
namespace copies {

struct alignas(16) Line {
  std::uint32_t word[4];
};

template <bool Far>
IMBREX_DEVICE Line load_line(const Line* from) {
#if defined(__CUDA_ARCH__)
  Line line;
  if constexpr (Far)
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(line.word[0]), "=r"(line.word[1]), "=r"(line.word[2]), "=r"(line.word[3])
                 : "l"(from)
                 : "memory");
  else
    line = *from;
  return line;
#else
  return *from;
#endif
}

/// `count` elements of T, which both addresses are aligned to.
template <bool Far, Scalar T, ThreadGroup G>
IMBREX_DEVICE void elements(T* to, const T* from, std::uint64_t count, const G& group) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // may be a call that a kernel seldom makes: it must not take its registers
#endif
  for (std::uint64_t i = group.thread_rank(); i < count; i += group.size())
    to[i] = Far ? words::load(from + i) : from[i];
}

template <bool Far, Scalar T, ThreadGroup G>
IMBREX_DEVICE void copy(T* to, const T* from, std::uint64_t count, const G& group) {
#if defined(__CUDA_ARCH__)
  const auto low = [](const void* address) {
    return static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(address));
  };
  constexpr std::uint32_t per_line = sizeof(Line) / sizeof(T);
  if (count < per_line * 2 || (low(to) ^ low(from)) % sizeof(Line) != 0) return elements<Far>(to, from, count, group);
  const std::uint32_t head = (0u - low(to)) % sizeof(Line) / sizeof(T);
  elements<Far>(to, from, head, group);
  to += head, from += head, count -= head;
  auto* lines = reinterpret_cast<Line*>(to);
  const auto* source = reinterpret_cast<const Line*>(from);
  const std::uint64_t all = count / per_line;
  constexpr int in_flight =
      4;  // loads a thread: enough for a block of 1,024; more would take a sleeping kernel's registers
  std::uint64_t i = group.thread_rank();
  const std::uint64_t step = group.size();
#pragma unroll 1
  for (; i + (in_flight - 1) * step < all; i += in_flight * step) {
    Line line[in_flight];
#pragma unroll
    for (int j = 0; j < in_flight; ++j) line[j] = load_line<Far>(source + i + j * step);
#pragma unroll
    for (int j = 0; j < in_flight; ++j) lines[i + j * step] = line[j];
  }
#pragma unroll 1
  for (; i < all; i += step) lines[i] = load_line<Far>(source + i);
  const std::uint64_t done = all * per_line;
  elements<Far>(to + done, from + done, count - done, group);
#else
  static_cast<void>(group);
  std::memcpy(to, from, count * sizeof(T));
#endif
}

}  // namespace copies

/// To peers whose memory is mapped. It has no state: what was issued is on its way.
class LoadStore {
 public:
  /// Whether context `number` could be made.
  IMBREX_DEVICE bool open(const Handle& handle, std::uint32_t number) { return number < handle.contexts; }

  /// The peer's place itself; null where loads and stores do not reach it.
  template <typename T>
  IMBREX_DEVICE T* pointer(const Handle& handle, T* address, std::uint32_t pe) const {
    return device::at_rank(handle.group, address, pe);
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    copies::copy<false>(pointer(handle, to, pe), from, count, group);
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    copies::copy<true>(to, device::at_rank(handle.group, from, pe), count, group);
  }

  template <Scalar T>
  IMBREX_DEVICE void put_one(const Handle& handle, T* to, T value, std::uint32_t pe) {
    words::store(pointer(handle, to, pe), value);
  }

  template <Scalar T>
  IMBREX_DEVICE T get_one(const Handle& handle, const T* from, std::uint32_t pe) {
    return words::load(device::at_rank(handle.group, from, pe));
  }

  /// Any atomic operation: `change(address)` at the peer's place. Returns what it returns.
  template <Atomic T, typename Change>
  IMBREX_DEVICE auto atomic(const Handle& handle, T* address, std::uint32_t pe, Change&& change) {
    return change(pointer(handle, address, pe));
  }

  IMBREX_DEVICE void put_pair(const Handle& handle, void* to, words::Pair pair, std::uint32_t pe) {
    words::store_pair(pointer(handle, static_cast<std::byte*>(to), pe), pair);
  }

  /// By one thread, behind a fence: the signal.
  IMBREX_DEVICE void signal(const Handle& handle, Signal* to, Signal value, SignalOperation operation,
                            std::uint32_t pe) {
    if (operation == SignalOperation::set)
      words::store(pointer(handle, to, pe), value);
    else
      words::add(pointer(handle, to, pe), value);
  }

  /// What this thread issued, and others that it met at a barrier, comes before what it issues behind this, at `pe` or,
  /// by all_pes, everywhere.
  IMBREX_DEVICE void fence(const Handle&, std::uint32_t) { device::fence_system(); }

  /// And is complete: everybody sees it.
  IMBREX_DEVICE void quiet(const Handle&, std::uint32_t) { words::full_fence(); }

  /// Moves on what the transport has in hand; called in loops that wait.
  IMBREX_DEVICE void progress(const Handle&) {}
};

}  // namespace imbrex::shmem
