// Litmus tests: what the API says of order, asked again and again. Each can be run without the call that makes the
// order, for a transport that reorders to show that the test can fail.
#pragma once

#include "shmem/scopes.hpp"

namespace imbrex::shmem::test {

enum class Litmus : std::uint8_t {
  // Message passing: data, what orders, a flag.
  put_fence_flag,
  put_fence_signal,
  put_quiet_signal,
  put_signal_set,
  put_signal_add,
  packet,
  store_buffering,    ///< two PEs put to each other, and read their own
  contention,         ///< all add to one word
  independent_reads,  ///< two PEs write, two read in different orders
};
inline constexpr const char* litmus_names[] = {"put, fence, flag",       "put, fence to the PE, signal_add",
                                               "put, quiet, signal_set", "put_signal, set",
                                               "put_signal, add",        "packet",
                                               "store buffering",        "atomics under contention",
                                               "independent reads"};
inline constexpr int litmuses = 9;

inline constexpr std::uint32_t pieces = 6, spread = 16;  ///< words of data, each in a line of its own

/// In the heap; a block's own except what is said. Zero at first.
struct alignas(128) Channel {
  std::uint64_t data[pieces * spread];
  Packet<std::uint64_t> packet;
  Signal flag, back;
  std::uint64_t wrong;  ///< what was seen that must not be
};

/// Blocks that a litmus test has on each PE.
inline constexpr std::uint32_t litmus_blocks = 2;

/// Data and a flag go round, each block's own; a PE waits for its own to be taken.
template <typename Transport>
IMBREX_KERNEL pass_messages(Handle handle, Litmus what, Channel* channels, std::uint64_t rounds, bool ordered) {
  if (group_number<Block>() >= litmus_blocks || !is_leader(Block{})) return;
  Context<Transport> context(handle);
  Channel& own = channels[block_index()];
  const std::uint32_t pes = context.pes(), next = (context.pe() + 1) % pes, before = (context.pe() + pes - 1) % pes;
  std::uint64_t line[pieces * spread] = {};
  std::uint64_t wrong = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const bool whole = what == Litmus::put_signal_set || what == Litmus::put_signal_add;
    for (std::uint32_t i = 0; i < pieces; ++i) {
      line[i * spread] = round * 10 + i;
      if (!whole && what != Litmus::packet) context.p(own.data + i * spread, line[i * spread], next);
    }
    switch (what) {
      case Litmus::put_fence_flag:
        if (ordered) context.fence();
        context.p(&own.flag, round, next);
        break;
      case Litmus::put_fence_signal:
        if (ordered) context.pe_fence(next);
        context.signal_add(&own.flag, 1, next);
        break;
      case Litmus::put_quiet_signal:
        if (ordered) context.pe_quiet(next);
        context.signal_set(&own.flag, round, next);
        break;
      case Litmus::packet:
        if (ordered) {
          context.put_packet(&own.packet, round, round, next);
        } else {
          context.p(&own.packet.value, round, next);
          context.p(&own.packet.signal, round, next);
        }
        break;
      default: {
        const bool set = what == Litmus::put_signal_set;
        const Signal value = set ? round : 1;
        const auto operation = set ? SignalOperation::set : SignalOperation::add;
        if (ordered) {
          context.put_signal(own.data, line, pieces * spread, &own.flag, value, operation, next);
        } else {
          context.put_nbi(own.data, line, pieces * spread, next);
          set ? context.signal_set(&own.flag, value, next) : context.signal_add(&own.flag, value, next);
        }
      }
    }
    bool well = false;
    if (what == Litmus::packet) {
      std::uint64_t value = 0;
      well = context.wait_packet(&own.packet, Compare::equal, round, value);
      wrong += value != round ? 1u : 0u;
    } else {
      well = context.wait_until(&own.flag, Compare::equal, round);
      // As any code reads what it was signalled.
      for (std::uint32_t i = 0; i < pieces; ++i) wrong += own.data[i * spread] != round * 10 + i ? 1u : 0u;
    }
    // What is still under way comes before the next round's.
    context.quiet();
    if (well) context.signal_set(&own.back, round, before);
    if (!well || !context.wait_until(&own.back, Compare::greater_equal, round)) {
      wrong = none;
      break;
    }
  }
  own.wrong = wrong;
}

/// PE 2 i and PE 2 i + 1. `log` gets by round whether this PE's own was still the old one.
template <typename Transport>
IMBREX_KERNEL buffer_stores(Handle handle, Team team, Channel* channels, std::uint8_t* log, std::uint64_t rounds,
                            bool ordered) {
  if (block_index() != 0 || !is_leader(Block{})) return;
  Context<Transport> context(handle);
  Channel& own = channels[0];
  const std::uint32_t peer = context.pe() ^ 1u;
  own.wrong = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    if (peer < context.pes()) {
      context.p(own.data, round, peer);
      if (ordered) context.quiet();
      log[round - 1] = context.g(own.data, context.pe()) < round ? 1 : 0;
    }
    if (!sync(context, team)) {
      own.wrong = none;
      return;
    }
  }
}

/// All blocks of all PEs draw tickets of PE 0. `drawn` counts there how often each was drawn.
template <typename Transport>
IMBREX_KERNEL draw_tickets(Handle handle, Channel* channels, std::uint32_t* drawn, std::uint64_t rounds, bool ordered) {
  if (!is_leader(Block{})) return;
  Context<Transport> context(handle);
  std::uint64_t* counter = channels[0].data;
  std::uint64_t* second = channels[0].data + spread;
  for (std::uint64_t round = 0; round < rounds; ++round) {
    std::uint64_t ticket = 0;
    if (ordered) {
      ticket = context.atomic_fetch_inc(counter, 0);
      for (std::uint64_t seen = context.g(second, 0);;) {
        const std::uint64_t there = context.atomic_compare_swap(second, seen, seen + 1, 0);
        if (there == seen) break;
        seen = there;
      }
    } else {
      ticket = context.g(counter, 0);
      context.p(counter, ticket + 1, 0);
      context.p(second, ticket + 1, 0);
    }
    context.atomic_inc(drawn + ticket, 0);
  }
  context.quiet();
}

/// Block 0 of PEs 0 and 1 writes 1, 2, ... to the other one; block 1 reads both words, its own PE's first, `rounds`
/// times. `log` gets both.
template <typename Transport>
IMBREX_KERNEL read_independently(Handle handle, Channel* channels, std::uint64_t* log, std::uint64_t rounds,
                                 bool ordered) {
  if (!is_leader(Block{})) return;
  Context<Transport> context(handle);
  const std::uint32_t me = context.pe(), other = me ^ 1u;
  if (me > 1) return;
  std::uint64_t* word = channels[0].data;
  Signal* over = &channels[0].flag;
  if (block_index() == 0) {
    for (std::uint64_t value = 1; !context.test(over, Compare::equal, 2); ++value) {
      context.p(word, value, other);
      context.quiet();
      if (value % 256 == 0 && device::given_up(handle.group)) return;
    }
  } else if (block_index() == 1) {
    if (!context.wait_until(word, Compare::greater, 0)) return;
    for (std::uint64_t i = 0; i < rounds; ++i) {
      context.get_nbi(log + 2 * i, word, 1, me);
      if (ordered) context.quiet();
      context.get_nbi(log + 2 * i + 1, word, 1, other);
      context.quiet();
    }
    context.signal_add(over, 1, me);
    context.signal_add(over, 1, other);
  }
}

}  // namespace imbrex::shmem::test
