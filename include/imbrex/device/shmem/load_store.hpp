// The transport to PEs on the same host: their memory is mapped, and loads and stores reach it.
//
// A Context moves bytes through a transport. Each transport has these functions, for addresses in this PE's part of the
// heap that stand for the same place in a peer's. It does nothing else: its users handle ranges, waits and the rest of
// OpenSHMEM. All threads of a group make a call together. It returns to each thread when its own share of a put is
// issued and the source may be written again, or its share of a get is there. The forms `_nbi` return sooner: the
// source of their put may be written, and the data of their get is there, only after a quiet. A transport that says
// `orders_signals` has put_signal and put_signal_nbi besides, which need no fence between data and signal.
#pragma once

#include "imbrex/device/shmem/bulk.hpp"
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

/// Loads that a thread has under way. By two, a put that a kernel never makes takes at most 8 of its registers.
template <typename G>
IMBREX_DEVICE constexpr int lines_in_flight() {
  if constexpr (requires { G::lines_in_flight; })
    return G::lines_in_flight;
  else
    return 2;
}

template <bool Far, Scalar T, ThreadGroup G>
IMBREX_DEVICE void copy(T* to, const T* from, std::uint64_t count, const G& group) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<G, Thread>)
    if (count == 1) {  // a quarter of a microsecond sooner than by the loops
      *to = Far ? words::load(from) : *from;
      return;
    }
  const auto address = [](const void* p) { return reinterpret_cast<std::uint64_t>(p); };
  constexpr std::uint32_t per_line = sizeof(Line) / sizeof(T);
  const std::uint64_t gap = address(from) - address(to);
  // Elements before the first whole line, and lines: none where the two addresses lie differently in theirs.
  std::uint32_t head = 0;
  std::uint64_t lines = 0;
  if (gap % sizeof(Line) == 0) {
    head = static_cast<std::uint32_t>(0u - address(to)) % sizeof(Line) / sizeof(T);
    if (head < count) lines = (count - head) / per_line;
  }
  const auto rank = static_cast<std::uint32_t>(group.thread_rank()), size = static_cast<std::uint32_t>(group.size());
  const std::uint64_t begin = address(to + head);
  std::uint64_t end = begin + lines * sizeof(Line);
#if __CUDA_ARCH__ >= 900
  if constexpr (!Far && std::is_base_of_v<BulkBlock, G>)
    if (lines > 0 && __isGlobal(from)) by_bulk(begin, begin + gap, lines * sizeof(Line), group), end = begin;
#endif
  const std::uint32_t step = size * sizeof(Line);
  constexpr int in_flight = lines_in_flight<G>();
#pragma unroll 1  // may be a call that a kernel seldom makes
  for (std::uint64_t at = begin + rank * sizeof(Line); at < end; at += in_flight * step) {
    Line line[in_flight];
#pragma unroll
    for (int j = 0; j < in_flight; ++j)
      if (j == 0 || at + j * step < end) line[j] = load_line<Far>(reinterpret_cast<const Line*>(at + gap + j * step));
#pragma unroll
    for (int j = 0; j < in_flight; ++j)
      if (j == 0 || at + j * step < end) *reinterpret_cast<Line*>(at + j * step) = line[j];
  }
  // What lies before the lines and after them.
  const std::uint64_t rest = count - lines * per_line;
#pragma unroll 1
  for (std::uint64_t i = rank; i < rest; i += size) {
    const std::uint64_t j = i < head ? i : i + lines * per_line;
    to[j] = Far ? words::load(from + j) : from[j];
  }
#else
  static_cast<void>(group);
  if constexpr (Far) {
    for (std::uint64_t i = 0; i < count; ++i) to[i] = words::load(from + i);
  } else if (count == 1) {
    words::store(to, *from);  // may be what somebody waits for
  } else {
    std::memcpy(to, from, count * sizeof(T));
  }
#endif
}

}  // namespace copies

/// To peers whose memory is mapped. It has no state: what was issued is on its way.
class LoadStore {
 public:
  /// Whether context `number` could be made.
  IMBREX_DEVICE bool open(const Handle& handle, std::uint32_t number) { return number < handle.contexts; }

  /// Whether they reach the PE. On GPUs all PEs of a heap are reached, and nothing is asked.
  static IMBREX_DEVICE bool reaches([[maybe_unused]] const Handle& handle, [[maybe_unused]] std::uint32_t pe) {
#if defined(__CUDA_ARCH__)
    return true;
#else
    return pe >= handle.pes() || device::state_of(handle.group, pe).epoch != epoch_of_far;
#endif
  }

  /// The peer's place itself; null where loads and stores do not reach it.
  template <typename T>
  IMBREX_DEVICE T* pointer(const Handle& handle, T* address, std::uint32_t pe) const {
    return device::at_rank(handle.group, address, pe);
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    copies::copy<false>(pointer(handle, to, words::here(pe)), from, count, group);
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void put_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    put(handle, to, from, count, pe, group);
  }

  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                         const G& group) {
    copies::copy<true>(to, pointer(handle, from, words::here(pe)), count, group);
  }
  template <Scalar T, ThreadGroup G>
  IMBREX_DEVICE void get_nbi(const Handle& handle, T* to, const T* from, std::uint64_t count, std::uint32_t pe,
                             const G& group) {
    get(handle, to, from, count, pe, group);
  }

  template <Scalar T>
  IMBREX_DEVICE void put_one(const Handle& handle, T* to, T value, std::uint32_t pe) {
    words::store(pointer(handle, to, pe), value);
  }

  template <Scalar T>
  IMBREX_DEVICE T get_one(const Handle& handle, const T* from, std::uint32_t pe) {
    return words::load(pointer(handle, from, pe));
  }

  /// One of operations.hpp, at the peer's place. Returns what was there before, where the operation tells.
  template <Atomic T, typename Operation>
  IMBREX_DEVICE T atomic(const Handle& handle, T* address, std::uint32_t pe, const Operation& operation) {
    return operation(pointer(handle, address, pe));
  }

  IMBREX_DEVICE void put_pair(const Handle& handle, void* to, words::Pair pair, std::uint32_t pe) {
    words::store_pair(pointer(handle, static_cast<std::byte*>(to), pe), pair);
  }

  /// By one thread, after a fence: the signal.
  IMBREX_DEVICE void signal(const Handle& handle, Signal* to, Signal value, SignalOperation operation,
                            std::uint32_t pe) {
    if (operation == SignalOperation::set)
      words::store(pointer(handle, to, words::here(pe)), value);
    else
      words::add(pointer(handle, to, words::here(pe)), value);
  }

  /// What this thread issued, and others that it met at a barrier, comes before what it issues afterwards, at `pe` or,
  /// by all_pes, everywhere.
  IMBREX_DEVICE void fence(const Handle&, std::uint32_t) { words::fence(); }

  /// Completes what was issued: all PEs see it.
  IMBREX_DEVICE void quiet(const Handle&, std::uint32_t) { words::full_fence(); }

  /// Moves on what the transport has in hand; called in loops that wait.
  IMBREX_DEVICE void progress(const Handle&) {}
};

}  // namespace imbrex::shmem
