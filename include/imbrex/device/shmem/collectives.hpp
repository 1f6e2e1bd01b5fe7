// Collectives of a team, in kernels. All members call in the same order, each by one group of threads at a time; a PE
// that does not come ends everybody's wait, as all waits do, and the call returns false.
//
// Each call has a number, which members count for themselves. A member tells another by storing the number in its
// TeamState, after a fence, and waits until it has been told. Nothing is reset, so graphs replay.
#pragma once

#include "imbrex/device/shmem/context.hpp"

namespace imbrex::shmem {

enum class Reduction : std::uint8_t { sum, product, minimum, maximum, bit_and, bit_or, bit_xor };

namespace collectives {

/// The call's number, to every thread of the group.
template <ThreadGroup G>
IMBREX_DEVICE std::uint64_t begin(const Team& team, const G& group) {
  const std::uint64_t call = words::load(&team.state->calls) + 1;
  group.sync();
  if (is_leader(group)) words::store(&team.state->calls, call);
  return call;
}

/// Tells members `first`, ... below `end`, after what the group stored.
template <typename Transport, ThreadGroup G>
IMBREX_DEVICE void tell(Context<Transport>& context, const Team& team, std::uint64_t call, std::uint32_t first,
                        std::uint32_t end, const G& group) {
  group.sync();
  auto member = static_cast<std::uint32_t>(first + group.thread_rank());
  if (member >= end) return;
  const bool aborted = device::load_relaxed(&context.handle().group.own->abort) != 0;  // comes beside the fence
  context.transport().fence(context.handle(), all_pes);
  if (aborted) return;
  for (; member < end; member += static_cast<std::uint32_t>(group.size()))
    if (expect_reached<Transport>(context.handle(), &team.state->calls, team.pe(member)))
      context.transport().signal(context.handle(), &team.state->arrived[team.me], call, SignalOperation::set,
                                 team.pe(member));
}

/// Until members `first`, ... below `end` have told of the call.
template <typename Transport, ThreadGroup G>
IMBREX_DEVICE bool wait(Context<Transport>& context, const Team& team, std::uint64_t call, std::uint32_t first,
                        std::uint32_t end, const G& group) {
  bool well = true;
  for (auto member = static_cast<std::uint32_t>(first + group.thread_rank()); well && member < end;
       member += static_cast<std::uint32_t>(group.size())) {
    const std::uint64_t* word = &team.state->arrived[member];
    std::uint64_t seen = 0;
    well = context.wait(FaultKind::collective, team.pe(member), word, call, seen,
                        [&] { return (seen = words::load_acquire(word)) >= call; });
  }
  return !any_of(group, !well);
}

template <typename T>
IMBREX_DEVICE T combine(Reduction reduction, T a, T b) {
  switch (reduction) {
    case Reduction::sum: return static_cast<T>(a + b);
    case Reduction::product: return static_cast<T>(a * b);
    case Reduction::minimum: return b < a ? b : a;
    case Reduction::maximum: return a < b ? b : a;
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    if (reduction == Reduction::bit_and) return static_cast<T>(a & b);
    if (reduction == Reduction::bit_or) return static_cast<T>(a | b);
    return static_cast<T>(a ^ b);
  } else {
    return a;
  }
}

}  // namespace collectives

/// Returns when all members have called; what they stored in their own memory before is visible afterwards.
template <typename Transport, ThreadGroup G = Thread>
IMBREX_DEVICE bool sync(Context<Transport>& context, const Team& team, const G& group = {}) {
  const std::uint64_t call = collectives::begin(team, group);
  collectives::tell(context, team, call, 0, team.size, group);
  return collectives::wait(context, team, call, 0, team.size, group);
}

/// A sync, and what the context issued is complete.
template <typename Transport, ThreadGroup G = Thread>
IMBREX_DEVICE bool barrier(Context<Transport>& context, const Team& team, const G& group = {}) {
  context.quiet(group);
  return sync(context, team, group);
}

/// `count` elements of member `root`'s source to every member's `to`, the root's own among them. `to` lies in the heap,
/// and every member is done with what was there.
template <typename Transport, Scalar T, ThreadGroup G = Thread>
IMBREX_DEVICE bool broadcast(Context<Transport>& context, const Team& team, T* to, const T* from, std::uint64_t count,
                             std::uint32_t root, const G& group = {}) {
  const std::uint64_t call = collectives::begin(team, group);
  if (team.me != root) return collectives::wait(context, team, call, root, root + 1, group);
  for (std::uint32_t i = 1; i <= team.size; ++i) {
    const std::uint32_t member = (root + i) % team.size;
    if (member != root || to != from) context.put_nbi(to, from, count, team.pe(member), group);
  }
  collectives::tell(context, team, call, 0, team.size, group);
  group.sync();
  return true;
}

/// Block i of `count` elements goes to member i, whose `to` holds what came, in the members' order.
template <typename Transport, Scalar T, ThreadGroup G = Thread>
IMBREX_DEVICE bool all_to_all(Context<Transport>& context, const Team& team, T* to, const T* from, std::uint64_t count,
                              const G& group = {}) {
  const std::uint64_t call = collectives::begin(team, group);
  for (std::uint32_t i = 1; i <= team.size; ++i) {
    const std::uint32_t member = (team.me + i) % team.size;
    context.put_nbi(to + team.me * count, from + member * count, count, team.pe(member), group);
  }
  collectives::tell(context, team, call, 0, team.size, group);
  return collectives::wait(context, team, call, 0, team.size, group);
}

/// Every member's `count` elements, in the members' order, on every member.
template <typename Transport, Scalar T, ThreadGroup G = Thread>
IMBREX_DEVICE bool all_gather(Context<Transport>& context, const Team& team, T* to, const T* from, std::uint64_t count,
                              const G& group = {}) {
  const std::uint64_t call = collectives::begin(team, group);
  for (std::uint32_t i = 1; i <= team.size; ++i)
    context.put_nbi(to + team.me * count, from, count, team.pe((team.me + i) % team.size), group);
  collectives::tell(context, team, call, 0, team.size, group);
  return collectives::wait(context, team, call, 0, team.size, group);
}

/// Every member's `count` elements combined, in the members' order, so that all get the same bits. Both lie in the
/// heap, and may be the same. Each member combines its part of the elements and puts it to all.
template <typename Transport, Scalar T, ThreadGroup G = Thread>
IMBREX_DEVICE bool reduce(Context<Transport>& context, const Team& team, Reduction reduction, T* to, const T* from,
                          std::uint64_t count, const G& group = {}) {
  if (!sync(context, team, group)) return false;                                    // all sources are there
  const std::uint64_t each = count / team.size + (count % team.size != 0 ? 1 : 0);  // no sum that wraps
  const std::uint64_t first = each * team.me < count ? each * team.me : count;
  const std::uint64_t end = count - first < each ? count : first + each;
  for (std::uint64_t i = first + group.thread_rank(); i < end; i += group.size()) {
    T value = context.g(from + i, team.pe(0));
    for (std::uint32_t member = 1; member < team.size; ++member)
      value = collectives::combine(reduction, value, context.g(from + i, team.pe(member)));
    for (std::uint32_t member = 0; member < team.size; ++member) context.p(to + i, value, team.pe(member));
  }
  const std::uint64_t call = collectives::begin(team, group);
  collectives::tell(context, team, call, 0, team.size, group);
  return collectives::wait(context, team, call, 0, team.size, group);
}

}  // namespace imbrex::shmem
