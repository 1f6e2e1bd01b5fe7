// Waits and posts of a plan's tasks, on the protocol that all kernels share (imbrex/device/protocol.hpp).
//
// Order. The data of a post are visible before it: the threads that stored meet at a barrier, then one of them
// fences at system scope and adds to the counters. A waiter polls with acquire at system scope; the threads that read
// meet it at a barrier afterwards. What the TMA is to load next needs a proxy fence in between.
#pragma once

#include <cstdint>

#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

/// Spreads stores over time. Links that take less than all SMs store at once push back into each of them,
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

  /// Nothing is stored any more: some rank had given up before, or this block has.
  __device__ __forceinline__ bool late() const { return number >> 63 != 0; }
  __device__ __forceinline__ void fail() { number |= std::uint64_t{1} << 63; }
};

__device__ __forceinline__ Epoch epoch_of(const Protocol& p, std::uint64_t e) {
  // copies is 1 or 2; a division would be a call.
  return {static_cast<std::uint32_t>(e >> (p.copies - 1)), static_cast<std::uint32_t>(e & (p.copies - 1)),
          static_cast<std::uint32_t>(e & 1), e};
}

/// Called by one thread of each block, after read_epoch and once its result is in use: enters the epoch, too. There are
/// `readers` blocks.
__device__ __forceinline__ void advance_epoch(const Protocol& p, std::uint64_t number) {
  if (blockIdx.x == 0) device::enter_epoch(p, number);
  const bool takes_turns = p.turns.bases != nullptr;
  if (takes_turns) settle_last_epoch(p.turns, number, blockIdx.x, p.readers);
  if (p.self_advancing == 0u || !device::advance_epoch(p, number)) return;
  if (takes_turns) return leave_epoch(p.turns, number);  // no copy engine takes part
  // NOTE: copy engines may still read this epoch's turn. The last one's, which goes here, have read theirs: the stream
  // waited for them before this kernel.
  copies_of(*p.own).turns[(number + 1) & 1] = epoch_of(p, number + 1).turn + 1;
}

/// By a thread that gave up one of the task's waits, in the block's own copy of it, before it hands on what it waited
/// for: nothing of the tile is stored, and the storing threads read no more for that than without a failure.
// NOTE: a word of its own in shared memory, read before the stores, makes the e4m3 kernels spill.
__device__ __forceinline__ void leave_out_stores(TaskEntry& task) {
  *const_cast<volatile std::uint16_t*>(&task.stores) = 0;
  __threadfence_block();
  device::fence_shared_for_bulk();  // before bulk copies of this thread, whose arrival tells others
}

/// Leaves out a transfer or reduction; by a thread that others meet at a barrier before they look at it.
__device__ __forceinline__ void leave_out(TaskEntry& task) {
  *const_cast<volatile std::uint8_t*>(reinterpret_cast<std::uint8_t*>(&task.kind)) =
      static_cast<std::uint8_t>(TaskKind::none);
}

__device__ __forceinline__ const std::byte* counter_of(const Protocol& p, const Epoch& epoch, const WaitEntry& wait) {
  return p.counters + epoch.set * p.set_stride + static_cast<std::uint64_t>(wait.signal) * p.counter_stride;
}

/// Returns once the wait is met; false if it passed its limit or some rank gave up. Called by one thread.
__device__ __forceinline__ bool wait_for(const Protocol& p, const Epoch& epoch, const TaskEntry& task,
                                         const WaitEntry& wait) {
  const std::uint32_t before =
      p.turns.bases == nullptr ? epoch.turn * wait.posts : base_of(p.turns, epoch.set, wait.signal);
  return device::wait_for(p, counter_of(p, epoch, wait), before + wait.count,
                          [&](device::Fault& fault, std::uint32_t seen) {
                            fault.kind = static_cast<std::uint32_t>(FaultKind::task);
                            fault.place[0] = task.queue;
                            fault.place[1] = task.task;
                            fault.place[2] = wait.signal;
                            fault.place[3] = p.turns.plan;
                            fault.expected = wait.count;
                            fault.seen = seen - before;
                            fault.epoch = epoch.number << 1 >> 1;
                          });
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
  if (!device::may_post(p)) return;
  for (std::uint32_t i = 0; i < posts.count; ++i)
    device::add_relaxed(
        reinterpret_cast<std::byte*>((i == 0 ? posts.first : posts.all[i]).counter) + epoch.set * p.set_stride, 1u);
}

}  // namespace imbrex::cuda
