// Kernels that move bytes: each group of the grid from its part of the source to its part of the target, one way.
#pragma once

#include "shmem/scopes.hpp"

namespace imbrex::shmem::test {

enum class Way : std::uint8_t {
  put,
  put_nbi,
  get,
  get_nbi,
  p,
  g,
  iput,
  iget,
  put_signal_set,
  put_signal_add,
  put_signal_nbi,
  p_signal,
  put_fence,
  put_pe_fence,
  put_quiet,
  put_pe_quiet,
  packets,
};
inline constexpr const char* way_names[] = {"put",
                                            "put_nbi",
                                            "get",
                                            "get_nbi",
                                            "p",
                                            "g",
                                            "iput",
                                            "iget",
                                            "put_signal",
                                            "put_signal_add",
                                            "put_signal_nbi",
                                            "p_signal",
                                            "put+fence",
                                            "put+pe_fence",
                                            "put+quiet",
                                            "put+pe_quiet",
                                            "packets"};
inline constexpr int ways = 17;

/// Whether the target's PE waits for a signal, and copies what came to `seen` while the kernel runs.
IMBREX_DEVICE bool is_signaled(Way way) { return way >= Way::put_signal_set; }
IMBREX_DEVICE bool is_get(Way way) {
  return way == Way::get || way == Way::get_nbi || way == Way::g || way == Way::iget;
}

struct Move {
  Way way;
  void *from, *to, *seen;                ///< of the group 0
  std::uint64_t count;                   ///< elements of a group
  std::uint64_t from_stride, to_stride;  ///< 1 except iput and iget
  std::uint64_t from_part, to_part;      ///< elements from a group's part to the next one's
  Signal* signals;                       ///< one for each group, 0
  std::uint32_t distance;                ///< to PE me + distance
};

inline constexpr Signal signal_of_move = (Signal{1} << 40) + 5;

template <typename Transport, typename T, typename G>
IMBREX_KERNEL move(Handle handle, Move m) {
  Context<Transport> context(handle);
  const auto group = Scope<G>::group();
  const std::uint32_t number = group_number<G>();
  const std::uint32_t pe = (context.pe() + m.distance) % context.pes();
  const T* from = static_cast<const T*>(m.from) + number * m.from_part;
  T* to = static_cast<T*>(m.to) + number * m.to_part;
  T* seen = static_cast<T*>(m.seen) + number * m.to_part;
  Signal* signal = m.signals + number;
  const std::uint64_t rank = group.thread_rank(), size = group.size();
  const auto flag = [&] {
    if (is_leader(group)) context.p(signal, signal_of_move, pe);
  };
  switch (m.way) {
    case Way::put: context.put(to, from, m.count, pe, group); break;
    case Way::put_nbi: context.put_nbi(to, from, m.count, pe, group); break;
    case Way::get: context.get(to, from, m.count, pe, group); break;
    case Way::get_nbi:
      context.get_nbi(to, from, m.count, pe, group);
      context.quiet(group);
      break;
    case Way::p:
      for (std::uint64_t i = rank; i < m.count; i += size) context.p(to + i, from[i], pe);
      break;
    case Way::g:
      for (std::uint64_t i = rank; i < m.count; i += size) to[i] = context.g(from + i, pe);
      break;
    case Way::iput: context.iput(to, from, m.to_stride, m.from_stride, m.count, pe, group); break;
    case Way::iget: context.iget(to, from, m.to_stride, m.from_stride, m.count, pe, group); break;
    case Way::put_signal_set:
      context.put_signal(to, from, m.count, signal, signal_of_move, SignalOperation::set, pe, group);
      break;
    case Way::put_signal_add:
      context.put_signal(to, from, m.count, signal, signal_of_move, SignalOperation::add, pe, group);
      break;
    case Way::put_signal_nbi:
      context.put_signal_nbi(to, from, m.count, signal, signal_of_move, SignalOperation::set, pe, group);
      break;
    case Way::p_signal:  // of one element: the last; the others go before it, behind one fence
      if (is_leader(group) && m.count != 0) {
        for (std::uint64_t i = 0; i + 1 < m.count; ++i) context.p(to + i, from[i], pe);
        context.p_signal(to + (m.count - 1), from[m.count - 1], signal, signal_of_move, SignalOperation::add, pe);
      }
      break;
    case Way::put_fence:
      context.put_nbi(to, from, m.count, pe, group);
      context.fence(group);
      flag();
      break;
    case Way::put_pe_fence:
      context.put_nbi(to, from, m.count, pe, group);
      context.pe_fence(pe, group);
      flag();
      break;
    case Way::put_quiet:
      context.put_nbi(to, from, m.count, pe, group);
      context.quiet(group);
      flag();
      break;
    case Way::put_pe_quiet:
      context.put_nbi(to, from, m.count, pe, group);
      context.pe_quiet(pe, group);
      flag();
      break;
    case Way::packets: break;
  }
  if (!is_signaled(m.way) || (m.way == Way::p_signal && m.count == 0)) return;
  if (!context.signal_wait_until(signal, Compare::equal, signal_of_move, group)) return;
  for (std::uint64_t i = rank; i < m.count; i += size) seen[i] = to[i];
}

/// Each element by a packet of its own: `to` holds packets, and `seen` gets what they carry.
template <typename Transport, typename T, typename G>
IMBREX_KERNEL send_packets(Handle handle, Move m) {
  Context<Transport> context(handle);
  const auto group = Scope<G>::group();
  const std::uint32_t number = group_number<G>();
  const std::uint32_t pe = (context.pe() + m.distance) % context.pes();
  const T* from = static_cast<const T*>(m.from) + number * m.from_part;
  auto* to = static_cast<Packet<T>*>(m.to) + number * m.to_part;
  T* seen = static_cast<T*>(m.seen) + number * m.to_part;
  for (std::uint64_t i = group.thread_rank(); i < m.count; i += group.size())
    context.put_packet(to + i, from[i], signal_of_move + i, pe);
  for (std::uint64_t i = group.thread_rank(); i < m.count; i += group.size())
    if (!context.wait_packet(to + i, Compare::equal, signal_of_move + i, seen[i])) return;
}

}  // namespace imbrex::shmem::test
