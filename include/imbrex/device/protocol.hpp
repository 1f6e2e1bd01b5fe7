// How kernels of several GPUs work together: epochs that kernels advance themselves, waits for counters that end,
// posts, and word of failure. Imbrex' own kernels stand on this header, and so may anybody's: it needs C++20 and
// nothing else, and compiles as CUDA and as C++, where ranks can be threads.
//
// Protocol. Each rank has a State in its part of symmetric memory. A counter is a word of 32 bits in the memory of the
// rank that waits for it; others add to it or store it, after a fence; it wraps, and is never reset. The epoch says how
// far a counter has to have come: it lies in the State, the threads that read it advance it, the last of them for the
// next kernel. So nothing in a launch changes from call to call, and a captured graph replays for ever.
//
// Failure. Every wait has a limit. The first thread of a rank that passes it writes to the Fault, in memory of the
// host, what it waited for, and sets `abort` in every rank's State. All waits of all ranks end then, and return false;
// nothing is posted any more. The host's own word, Fault::abort, does the same. A kernel must neither use what it did
// not get, nor store into another rank's memory because of it.
//
// Late ranks. A rank whose host is late has not begun the epoch that its peers wait in. `entered` tells them: a rank
// stores it in each epoch, and peers read it where a wait has become long. While some rank has not entered, the wait
// may last as long as the entry limit, and the host is told once. From when all have, the limit starts again.
#pragma once

#include "imbrex/device/ordering.hpp"

namespace imbrex::device {

/// What the waits, posts and epochs of a rank share, in its part of symmetric memory. Zero at first.
struct alignas(64) State {
  std::uint64_t epoch;       ///< advanced by this rank's own kernels
  std::uint32_t abort;       ///< not 0: some rank gave up, all waits end. Written by any rank
  std::uint32_t fault_lock;  ///< taken by the first thread of this rank that writes to its Fault
  std::uint32_t readers;     ///< that have read `epoch`
  std::uint32_t entered;     ///< epochs that this rank's kernels have begun, mod 2^32
  std::uint32_t told;        ///< the value of `entered` in which this rank told its host of a late peer
  std::uint32_t unused[9];
};
static_assert(sizeof(State) == 64 && offsetof(State, abort) == 8 && offsetof(State, readers) == 16);

/// In host memory that the device writes, except `abort`: the first wait of a rank that passed its limit. `state`
/// commits: it is written last. The waiting code defines what the numbers say. Before, they are of a wait for a late
/// rank, which `told` commits; the host clears that word.
struct Fault {
  enum : std::uint32_t { clear = 0, timed_out = 1, never_entered = 2, late = 3 };
  volatile std::uint32_t state;
  volatile std::uint32_t ended_early;  ///< waits of this rank ended because another one, or the host, gave up
  volatile std::uint32_t abort;        ///< the host's word that all waits of all ranks end
  volatile std::uint32_t kind;
  volatile std::uint32_t place[4];
  volatile std::uint32_t expected, seen;
  volatile std::uint64_t epoch;
  volatile std::uint32_t late_and_one;  ///< the rank that had not entered the epoch, and 1; 0: it came meanwhile
  volatile std::uint32_t told;          ///< `late`, until the host has heard of it
  volatile std::uint32_t why;           ///< what is being written down
};
static_assert(sizeof(Fault) == 64 && offsetof(Fault, epoch) == 40);

/// Waits are timed in ticks of 2^20 ns, an even number of them, so that a register holds when one began. No wait is
/// given up before its limit. A limit above 52 days counts as 52 days.
constexpr std::uint32_t ticks_of(std::uint64_t ns) {
  constexpr std::uint64_t most = 0xffffffff;
  return static_cast<std::uint32_t>(ns >> 20 < most - 2 ? (ns >> 20) + 2 : most);
}

/// One rank's view, by value into kernels.
struct Group {
  State* own;
  std::byte* states;  ///< rank 0's State; rank r's lies r * stride further
  std::uint64_t stride;
  // Ticks of one wait; see ticks_of.
  std::uint32_t limit;       ///< once all ranks have entered its epoch
  std::uint32_t look_after;  ///< where it is too short to look
  Fault* fault;
  std::uint32_t rank, ranks;
  std::uint32_t readers;                   ///< threads that read the epoch, and advance it, in one epoch
  std::uint32_t pause_seed, max_pause_ns;  ///< tests: random pauses; 0: none
  std::uint32_t entry_limit;               ///< ticks before all have; 0: as `limit`, and no wait looks who is late
};
// Kernels of rings keep it in local memory.
static_assert(sizeof(Group) == 64);

/// The same place in another rank's memory, of symmetric memory that `own` lies in.
template <typename T>
IMBREX_DEVICE T* at_rank(const Group& g, T* own, std::uint32_t rank) {
  const std::uint64_t mine = reinterpret_cast<std::uint64_t>(own);
  return reinterpret_cast<T*>(mine + (static_cast<std::uint64_t>(rank) - g.rank) * g.stride);
}

IMBREX_DEVICE State& state_of(const Group& g, std::uint32_t rank) {
  return *reinterpret_cast<State*>(g.states + rank * g.stride);
}

// -------------------------------------------------------------------------------------------------- epochs

/// By each of the `readers`, once.
IMBREX_DEVICE std::uint64_t read_epoch(const Group& g) {
#if defined(__CUDA_ARCH__)
  return *const_cast<const volatile std::uint64_t*>(&g.own->epoch);
#else
  return word_at<std::uint64_t>(&g.own->epoch).load(std::memory_order_relaxed);
#endif
}

/// By a thread of each epoch, before it waits long: peers that look for it see that this rank has entered.
// NOTE: beside the load of the epoch it held up those that follow, and a kernel by 1.5 us (H200).
IMBREX_DEVICE void enter_epoch(const Group& g, std::uint64_t epoch) {
  store_relaxed(&g.own->entered, static_cast<std::uint32_t>(epoch) + 1);
}

/// Called by each reader, after it has read the epoch: the last one to come advances the epoch for the next kernel of
/// the stream, and learns it.
IMBREX_DEVICE bool advance_epoch(const Group& g, std::uint64_t epoch) {
#if defined(__CUDA_ARCH__)
  if (atomicAdd(&g.own->readers, 1u) != g.readers - 1) return false;
  g.own->readers = 0;
  g.own->epoch = epoch + 1;
#else
  if (word_at<std::uint32_t>(&g.own->readers).fetch_add(1, std::memory_order_relaxed) != g.readers - 1) return false;
  word_at<std::uint32_t>(&g.own->readers).store(0, std::memory_order_relaxed);
  word_at<std::uint64_t>(&g.own->epoch).store(epoch + 1, std::memory_order_relaxed);
#endif
  return true;
}

// ------------------------------------------------------------------------------------------------- failure

/// Ends all waits of all ranks, and all posts.
IMBREX_DEVICE void end_all_waits(const Group& g) {
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // beside hot loops
#endif
  for (std::uint32_t r = 0; r < g.ranks; ++r) store_relaxed(&state_of(g, r).abort, 1u);
}

IMBREX_DEVICE void write_down(volatile std::uint32_t& word, std::uint32_t value) {
#if defined(__CUDA_ARCH__)
  word = value;
#else
  word_at<std::uint32_t>(&word).store(value, std::memory_order_release);
#endif
}

/// Whether this rank's waits are to end, because a rank gave up or, where it is asked, the host. Its word crosses the
/// bus, and is passed on to where all ranks look. Calls that are queued after one that failed, and ranks that come to
/// one late, ask before they store anything.
IMBREX_DEVICE bool given_up(const Group& g, bool ask_host = true) {
  if (load_relaxed(&g.own->abort) == 0u) {
    if (!ask_host || load_relaxed(&g.fault->abort) == 0u) return false;
    end_all_waits(g);
  }
  write_down(g.fault->ended_early, 1);
  return true;
}

/// Counters wrap: only a lead of 2^31 would be taken for the opposite.
IMBREX_DEVICE bool reached(std::uint32_t seen, std::uint32_t expected) {
  return static_cast<std::int32_t>(seen - expected) >= 0;
}

/// The first rank that has not entered the epoch that this one is in; if there is none, how many ranks there are.
IMBREX_DEVICE std::uint32_t first_late(const Group& g) {
  std::uint32_t r = 0;
  // NOTE: waits beside full registers have none for what a loop would keep: it loads both words each time.
#if defined(__CUDA_ARCH__)
#pragma unroll 1
#endif
  while (r < g.ranks && reached(load_relaxed(&state_of(g, r).entered), load_relaxed(&g.own->entered))) ++r;
  return r;
}

/// Whether no other thread of this rank has left that mark in one of its words.
IMBREX_DEVICE bool is_first(std::uint32_t& word, std::uint32_t mark) {
#if defined(__CUDA_ARCH__)
  return atomicExch(&word, mark) != mark;
#else
  return word_at<std::uint32_t>(&word).exchange(mark, std::memory_order_relaxed) != mark;
#endif
}

/// Writes down the first wait of this rank that passed its limit, and ends every wait of every rank. `where` gets the
/// Fault and says what was waited for: kind, place, expected, seen, epoch.
template <typename Where>
IMBREX_DEVICE void give_up(const Group& g, Where&& where) {
  if (is_first(g.own->fault_lock, 1u)) {
    where(*g.fault);
    fence_system();
    write_down(g.fault->state, Fault::timed_out);
  }
  end_all_waits(g);
}

/// What has become of a wait of an epoch: Fault::state, or `late`: it goes on, and the host is told of the rank, once
/// in an epoch. `where` as in give_up. Whether the wait goes on.
// NOTE: one place for all, with little to keep beside `where`: it takes room and registers in kernels that have none.
template <typename Where>
IMBREX_DEVICE bool report(const Group& g, std::uint32_t why, Where&& where) {
  std::uint32_t* const lock = why == Fault::late ? &g.own->told : &g.own->fault_lock;
  const std::uint32_t mark = why == Fault::late ? load_relaxed(&g.own->entered) : 1u;
  if (is_first(*lock, mark)) {
    write_down(g.fault->why, why);
    where(*g.fault);
    why = load_relaxed(const_cast<std::uint32_t*>(&g.fault->why));
    if (why != Fault::timed_out)
      if (const std::uint32_t r = first_late(g); r < g.ranks) write_down(g.fault->late_and_one, r + 1);
    fence_system();
    write_down(why == Fault::late ? g.fault->told : g.fault->state, why);
  }
  if (why == Fault::late) return true;
  end_all_waits(g);
  return false;
}

// --------------------------------------------------------------------------------------------------- waits

/// How a loop of polls goes, counted in polls that failed.
struct Cadence {
  std::uint32_t pause_after = 16;  ///< then a pause follows each; they stay far below the microsecond that a word takes
  std::uint32_t pause = 64;        ///< from GPU to GPU. Nanoseconds; 0: there is none
  std::uint32_t look = 256;        ///< polls from one look to the next: at the clock, and at the rank's own word
  std::uint32_t ask = 256;         ///< the same: at the host's
  bool late = true;  ///< whether a wait looks who is late to its epoch; else the limit holds from its start
};

/// For waits that belong to no epoch.
IMBREX_DEVICE constexpr Cadence without_epoch(Cadence cadence = {}) {
  cadence.late = false;
  return cadence;
}

/// Bounds a loop of polls: asked after a poll that failed, says whether to go on. `where` as in give_up. `enter` is
/// called once, at the first look at the clock, by kernels that have not entered their epoch yet. The count of polls
/// may wrap: the clock is started once.
template <Cadence cadence = Cadence{}, typename Count = std::uint32_t>
class BoundedPolls {
 public:
  template <typename Where, typename Enter>
  IMBREX_DEVICE bool left(const Group& g, Where&& where, Enter&& enter) {
    ++polls_;
    if (cadence.pause != 0 && polls_ > cadence.pause_after) pause_ns(cadence.pause);
    if (polls_ % cadence.look != 0) return true;
    if (begin_ == 0) {
      begin_ = ticks();
      enter();
    }
    if (given_up(g, polls_ % cadence.ask == 0)) return false;
    if constexpr (!cadence.late) {
      if (ticks() - begin_ <= g.limit) return true;
      give_up(g, where);
      return false;
    } else {
      if (ticks() - begin_ <= g.look_after) return true;
      const std::uint32_t why = judge(g);
      if (why == Fault::clear) return true;
      return report(g, why, where);
    }
  }
  template <typename Where>
  IMBREX_DEVICE bool left(const Group& g, Where&& where) {
    return left(g, where, [] {});
  }

 private:
  IMBREX_DEVICE static std::uint32_t ticks() { return static_cast<std::uint32_t>(now_ns() >> 20) & ~1u; }

  // What is to be reported of a wait that is long enough to look who is late, or nothing. The clock is read where it is
  // compared: nothing of it is kept meanwhile.
  IMBREX_DEVICE std::uint32_t judge(const Group& g) {
    if (g.entry_limit != 0 && (begin_ & 1) == 0) {
      if (first_late(g) < g.ranks) {
        const std::uint32_t waited = ticks() - begin_;
        if (waited > g.entry_limit) return Fault::never_entered;
        return waited > g.limit ? Fault::late : Fault::clear;
      }
      begin_ = ticks() - 1;
    }
    return ticks() - begin_ > g.limit ? Fault::timed_out : Fault::clear;
  }

  std::uint32_t begin_ = 0;  // odd: from then on every rank had entered
  Count polls_ = 0;
};

/// Until met() is true; false if that took too long, or some rank gave up.
template <Cadence cadence = Cadence{}, typename Met, typename Where>
IMBREX_DEVICE bool wait_until(const Group& g, Met&& met, Where&& where) {
  BoundedPolls<cadence> polls;
  for (;;) {
    if (met()) return true;
    if (!polls.left(g, where)) return false;
  }
}

/// Until a counter of this rank's has come as far as `expected`. What was written before the posts that it counts is
/// visible then to this thread, and to those that it meets at a barrier. `where` gets the Fault and what was seen.
template <Cadence cadence = Cadence{}, typename Where>
IMBREX_DEVICE bool wait_for(const Group& g, const void* counter, std::uint32_t expected, Where&& where) {
  if (reached(load_acquire(counter), expected)) return true;
  std::uint32_t seen = 0;
  return wait_until<cadence>(
      g, [&] { return reached(seen = load_acquire(counter), expected); }, [&](Fault& fault) { where(fault, seen); });
}

// --------------------------------------------------------------------------------------------------- posts

/// By one thread, after a barrier with all that stored: fences, and says whether posts may follow. Nothing is posted
/// once some rank gave up.
IMBREX_DEVICE bool may_post(const Group& g) {
  const std::uint32_t aborted = load_relaxed(&g.own->abort);  // comes beside the fence
  fence_system();
  return aborted == 0u;
}

/// Adds to a counter in another rank's memory, or stores it: a thread that sees the new value sees what was stored
/// before.
IMBREX_DEVICE void post_add(const Group& g, void* counter, std::uint32_t value) {
  if (may_post(g)) add_relaxed(counter, value);
}
IMBREX_DEVICE void post_set(const Group& g, void* counter, std::uint32_t value) {
  if (may_post(g)) store_relaxed(counter, value);
}

// --------------------------------------------------------------------------------------------------- tests

/// A pause of up to max_pause_ns, one time in eight: what the numbers are together decides.
IMBREX_DEVICE void pause_for_tests(const Group& g, std::uint64_t epoch, std::uint32_t where, std::uint32_t who = 0) {
  if (g.max_pause_ns == 0) return;
  auto number = static_cast<std::uint32_t>(epoch);
#if defined(__CUDA_ARCH__)
  asm volatile("" : "+r"(number));  // else its product takes a register in kernels that never pause
#endif
  std::uint32_t x =
      g.pause_seed ^ (where * 0x9e3779b9u) ^ (number * 0x85ebca6bu) ^ (g.rank * 0xc2b2ae35u) ^ (who * 0x27d4eb2fu);
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
  if (x % 8 != 0) return;
  const std::uint64_t until = now_ns() + (x >> 3) % g.max_pause_ns;
  while (now_ns() < until) pause_ns(200);
}

}  // namespace imbrex::device
