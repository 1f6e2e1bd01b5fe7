// Waits and posts on the device, and the one bounded wait that every kernel uses.
//
// Order. A poster's data are visible before its post: the threads that stored meet at a barrier, then one of them
// fences at system scope and adds to the counters. A waiter polls with acquire at system scope; the threads that read
// meet it at a barrier afterwards. What the tensor-memory unit is to load next needs a proxy fence in between.
#pragma once

#include <cstdint>

#include "execute/cuda/tables/table.hpp"
#include "runtime/cuda/ordering.cuh"

namespace imbrex::cuda {

/// Orders what other threads' ordinary stores brought, seen by an acquire, before this thread's tensor-memory loads.
/// NOTE: without the memory named it would be a fence of the whole GPU, too, and wait for this thread's own stores.
__device__ __forceinline__ void fence_before_loads() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/// Orders reads of shared memory, this thread's and those before what it waited for, before loads that come there.
__device__ __forceinline__ void fence_after_reads() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Spreads stores over time. Links that take less than all multiprocessors store at once push back into each of them,
/// and its loads wait behind its stores.
struct Pace {
  std::uint32_t step = 0, next = 0;  // nanoseconds; a step of 0 never waits

  __device__ __forceinline__ static std::uint32_t now() {
    std::uint32_t time;
    asm volatile("mov.u32 %0, %globaltimer_lo;" : "=r"(time));
    return time;
  }
  /// `steps` over `duration` nanoseconds from now on.
  __device__ __forceinline__ static Pace over(std::uint32_t duration, std::uint32_t steps) {
    return {duration / steps, now() + duration / steps};
  }
  __device__ __forceinline__ void wait() {
    if (step == 0) return;
    while (static_cast<std::int32_t>(next - now()) > 0) __nanosleep(32);
    next += step;
  }
};

struct Epoch {
  std::uint32_t turn;  ///< epoch / copies, mod 2^32
  std::uint32_t set;   ///< epoch % copies: of counters
  std::uint32_t copy;  ///< epoch % 2: of workspaces
  std::uint64_t number;

  /// The rank came too late to it; see came_too_late.
  __device__ __forceinline__ bool late() const { return number >> 63 != 0; }
};
inline constexpr std::uint64_t late_epoch = std::uint64_t{1} << 63;  ///< in `number`

/// One thread of a block reads it, once.
__device__ __forceinline__ std::uint64_t read_epoch(const Protocol& p) {
  return *reinterpret_cast<const volatile std::uint64_t*>(&p.state->epoch);
}

__device__ __forceinline__ Epoch epoch_of(const Protocol& p, std::uint64_t e) {
  // copies is 1 or 2; a division would be a call.
  return {static_cast<std::uint32_t>(e >> (p.copies - 1)), static_cast<std::uint32_t>(e & (p.copies - 1)),
          static_cast<std::uint32_t>(e & 1), e};
}

/// Called by one thread of each block, after read_epoch and once its result is in use.
__device__ __forceinline__ void advance_epoch(const Protocol& p, const Epoch& epoch, std::uint32_t blocks) {
  if (p.self_advancing == 0u || atomicAdd(&p.state->readers, 1u) != blocks - 1) return;
  p.state->readers = 0;
  p.state->epoch = epoch.number + 1;
  // NOTE: copy engines may still read this epoch's turn. The last one's, which goes here, have read theirs: the stream
  // waited for them before this kernel.
  p.state->turns[(epoch.number + 1) & 1] = epoch_of(p, epoch.number + 1).turn + 1;
}

/// Writes down the first wait of this rank that passed its limit, and ends every wait of every rank.
__device__ __forceinline__ void give_up(const Protocol& p, const Epoch& epoch, const TaskEntry& task,
                                        const WaitEntry& wait, std::uint32_t seen) {
  if (atomicCAS(&p.state->fault_lock, 0u, 1u) == 0u) {
    p.fault->queue = task.queue;
    p.fault->task = task.task;
    p.fault->signal = wait.signal;
    p.fault->count = wait.count;
    p.fault->seen = seen - epoch.turn * wait.posts;
    p.fault->epoch = epoch.number;
    __threadfence_system();
    p.fault->state = FaultRecord::timed_out;
  }
  for (std::uint32_t r = 0; r < p.ranks; ++r) {
    auto* state = reinterpret_cast<EpochState*>(p.peer_states + static_cast<std::int64_t>(r) * p.peer_stride);
    store_relaxed_system(&state->abort, 1u);
  }
}

/// A word of a block's shared memory: not 0 once a wait of the block was given up, and never 0 again. Whoever gives up
/// sets it before the block's barrier; whoever stores reads it behind that.
using Failed = std::uint32_t;

/// By a thread that gave up one of the task's waits, in the block's own copy of it, before it hands on what it waited
/// for: nothing of the tile is stored, and whoever stores it reads nothing more for that than without a failure.
// NOTE: a word of its own in shared memory, read before the stores, makes the e4m3 kernels spill.
__device__ __forceinline__ void leave_out_stores(TaskEntry& task) {
  *const_cast<volatile std::uint16_t*>(&task.stores) = 0;
  __threadfence_block();
  fence_after_reads();  // before bulk copies of this thread, whose arrival tells others
}

/// The same of a transfer or reduction, by a thread that others meet at a barrier before they look at it.
__device__ __forceinline__ void leave_out(TaskEntry& task) {
  *const_cast<volatile std::uint8_t*>(reinterpret_cast<std::uint8_t*>(&task.kind)) =
      static_cast<std::uint8_t>(TaskKind::none);
}

/// By the thread that reads the epoch: whether a rank has given up before. Calls that are queued behind one that failed
/// store nothing, nor does a rank that comes to it late; its host hears of it.
__device__ __forceinline__ bool came_too_late(const Protocol& p) {
  if (*const_cast<const volatile std::uint32_t*>(&p.state->abort) == 0u) return false;
  p.fault->ended_early = 1;
  return true;
}

/// Whether this rank's waits are to end: a rank gave up, or the host knows of one that is lost. That crosses the bus,
/// and is passed on to where posts look.
// NOTE: no copy to the device could tell them: with CUDA_DEVICE_MAX_CONNECTIONS=1 it stands behind the kernel that
// waits.
__device__ __forceinline__ bool is_given_up(const Protocol& p) {
  if (*reinterpret_cast<volatile std::uint32_t*>(&p.state->abort) == 0u) {
    if (p.fault->abort == 0u) return false;
    store_relaxed_system(&p.state->abort, 1u);
  }
  p.fault->ended_early = 1;
  return true;
}

__device__ __forceinline__ bool wait_slowly(const Protocol& p, const Epoch& epoch, const TaskEntry& task,
                                            const WaitEntry& wait, const void* counter, std::uint32_t expected) {
  const std::uint64_t begin = global_nanoseconds();
  for (unsigned polls = 0;; ++polls) {
    const std::uint32_t seen = load_acquire_system(counter);
    if (static_cast<std::int32_t>(seen - expected) >= 0) return true;
    // NOTE: pauses stay far below the microsecond that a flag takes from GPU to GPU.
    if (polls > 16) __nanosleep(64);
    if (polls % 256 != 255) continue;
    if (is_given_up(p)) return false;
    if (global_nanoseconds() - begin > p.limit_ns) {
      give_up(p, epoch, task, wait, seen);
      return false;
    }
  }
}

__device__ __forceinline__ const std::byte* counter_of(const Protocol& p, const Epoch& epoch, const WaitEntry& wait) {
  return p.counters + epoch.set * p.set_stride + static_cast<std::uint64_t>(wait.signal) * p.counter_stride;
}

/// Whether the wait is met now.
__device__ __forceinline__ bool met(const Protocol& p, const Epoch& epoch, const WaitEntry& wait) {
  const std::uint32_t expected = epoch.turn * wait.posts + wait.count;
  return static_cast<std::int32_t>(load_acquire_system(counter_of(p, epoch, wait)) - expected) >= 0;
}

/// Returns once the wait is met; false if it passed its limit or some rank gave up. Called by one thread.
__device__ __forceinline__ bool wait_for(const Protocol& p, const Epoch& epoch, const TaskEntry& task,
                                         const WaitEntry& wait) {
  if (met(p, epoch, wait)) return true;
  return wait_slowly(p, epoch, task, wait, counter_of(p, epoch, wait), epoch.turn * wait.posts + wait.count);
}

__device__ __forceinline__ bool wait_for_all(const Protocol& p, const Epoch& epoch, const TaskEntry& task,
                                             const WaitEntry* waits, std::uint32_t first, std::uint32_t count) {
  bool met = true;
  for (std::uint32_t w = 0; w < count; ++w) met = met && wait_for(p, epoch, task, waits[task.waits + first + w]);
  return met;
}

/// Whom a task tells that it is done.
struct Posts {
  PostEntry first;
  const PostEntry* all;
  std::uint32_t count;
};

__device__ __forceinline__ Posts posts_of(const TaskEntry& task, const PostEntry* posts) {
  return {task.post, posts + task.posts, task.post_count};
}

/// Called by one thread after a barrier with all threads that stored, and that waited: nothing is posted once a wait of
/// this rank was given up.
__device__ __forceinline__ void post_all(const Protocol& p, const Epoch& epoch, const Posts& posts) {
  const std::uint32_t aborted = *reinterpret_cast<volatile std::uint32_t*>(&p.state->abort);  // comes beside the fence
  fence_system();
  if (aborted != 0u) return;
  for (std::uint32_t i = 0; i < posts.count; ++i)
    add_relaxed_system(
        reinterpret_cast<std::byte*>((i == 0 ? posts.first : posts.all[i]).counter) + epoch.set * p.set_stride, 1u);
}

/// Tests: a pause before a task, from nothing to max_delay_ns, in one task of eight.
__device__ __forceinline__ void maybe_pause(const Protocol& p, const Epoch& epoch, std::uint32_t task) {
  if (p.max_delay_ns == 0) return;
  std::uint32_t x = p.delay_seed ^ (task * 0x9e3779b9u) ^ (static_cast<std::uint32_t>(epoch.number) * 0x85ebca6bu) ^
                    (p.rank * 0xc2b2ae35u);
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu, x ^= x >> 16;
  if (x % 8 != 0) return;
  const std::uint64_t until = global_nanoseconds() + (x >> 3) % p.max_delay_ns;
  while (global_nanoseconds() < until) __nanosleep(500);
}

}  // namespace imbrex::cuda
