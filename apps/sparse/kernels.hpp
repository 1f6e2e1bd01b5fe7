// The solve as kernels, for GPUs and CPUs. Included by one CUDA and one C++ source.
//
// Protocol. An unknown is a packet of value and epoch: results of this PE lie in `solved`, parts of sums that other
// PEs send in `slots`. A reader that sees the epoch in a packet has the value with it, so nothing is fenced, counted or
// reset. Slots alternate by epoch, and a PE writes to those of epoch e once all PEs have told it, by `done`, that they
// are through with e - 2. Within a PE solves are ordered by the stream, so `solved` needs no second copy.
//
// Progress. Chunks come in an order in which each needs only earlier ones, of any PE. Warps draw them in this order:
// the earliest one that is not done has been drawn by a warp that is on its way to it. A warp draws its next one
// before it has done the one it is at, which changes nothing: what it is at comes earlier.
//
// Epochs. Every warp of a launch draws until it gets a number that is no chunk's, so that a solve takes as many numbers
// as there are chunks and warps together. The first number that a warp draws tells it the epoch.
//
// Sums. Lane l of 2^k adds terms l, l + 2^k, ... in this order, fused; lanes are added pairwise, those furthest apart
// first. Terms are this PE's columns in their order, then slots by PE. So a result's bits depend on the matrix and on
// how rows are shared out, and on nothing else: not on the device, nor on who came first.
#pragma once

#include <cmath>

#include "apps/sparse/tasks.hpp"
#include "imbrex/device/shmem.cuh"
#include "imbrex/device/shmem/ring/transport.hpp"

namespace imbrex::apps::sparse {

/// What a PE's kernels take. All but `slots` and `done` is this PE's own. A right-hand side's number runs fastest.
template <typename T>
struct SystemArgs {
  const Chunk* chunks;
  const Task* tasks;
  const std::uint32_t* source;
  const T* value;
  const T* diagonal;
  const T* right;            ///< by row of this PE
  T* result;                 ///< by row of this PE
  shmem::Packet<T>* solved;  ///< by place
  shmem::Packet<T>* slots;   ///< symmetric, twice `slot_count`
  shmem::Signal* done;       ///< symmetric, by PE: the last epoch whose slots it has read
  std::uint64_t* drawn;      ///< numbers of tickets
  std::uint64_t* ended;      ///< warps
  std::uint64_t slot_count;  ///< packets of an epoch
  std::uint32_t chunk_count;
  std::uint32_t columns;  ///< right-hand sides: a multiple of what a warp does at once
};

namespace {

using shmem::Warp;
namespace words = shmem::words;

// All lanes of all warps of a GPU may wait at once, and those of a PE whose rows come late wait long. They ask the host
// every few milliseconds: by the usual cadence their loads over the bus took 100 times as long as the solve.
constexpr device::Cadence crowd{.ask = 1u << 16};

/// The sums of a lane, for so many right-hand sides.
template <typename T, int columns>
struct Sums {
  T of[columns];
};

/// One PE's solve, of `columns` right-hand sides at once.
template <typename T, int columns, typename Transport>
class Solve {
 public:
  IMBREX_DEVICE Solve(shmem::Context<Transport>& context, const SystemArgs<T>& args, std::uint64_t epoch)
      : context_(context), args_(args), epoch_(epoch), slots_(args.slots + epoch % 2 * args.slot_count) {}

  /// By all of a warp: a chunk, for right-hand sides from `first` on. False once a wait has failed.
  IMBREX_DEVICE bool chunk(const Chunk chunk, std::uint32_t first) {  // a copy: waits would have it read again
    const std::uint32_t lanes = 1u << chunk.log_lanes;
#if defined(__CUDA_ARCH__)
    const Warp warp;
    const std::uint32_t lane = warp.thread_rank() % lanes, number = warp.thread_rank() / lanes;
    const bool mine = number < chunk.tasks;
    Sums<T, columns> sums{};
    Unknown unknown{};
    Task task{};
    bool well = true;
    if (mine) {
      task = args_.tasks[chunk.task + number];
      unknown = load(chunk, number, task, first);
      well = add(task, args_.tasks[chunk.task + number + 1].begin, lane, lanes, first, sums);
    }
    if (warp.any(!well)) return false;
    for (std::uint32_t apart = lanes / 2; apart != 0; apart /= 2)
#pragma unroll
      for (int c = 0; c < columns; ++c) sums.of[c] += __shfl_xor_sync(0xffffffffu, sums.of[c], apart);
    if (mine && lane == 0) finish(chunk, number, task, first, unknown, sums);
#else
    for (std::uint32_t number = 0; number < chunk.tasks; ++number) {
      const Task& task = args_.tasks[chunk.task + number];
      Sums<T, columns> sums[32] = {};
      for (std::uint32_t lane = 0; lane < lanes; ++lane)
        if (!add(task, args_.tasks[chunk.task + number + 1].begin, lane, lanes, first, sums[lane])) return false;
      for (std::uint32_t apart = lanes / 2; apart != 0; apart /= 2)
        for (std::uint32_t lane = 0; lane < apart; ++lane)
          for (int c = 0; c < columns; ++c) sums[lane].of[c] += sums[lane + apart].of[c];
      finish(chunk, number, task, first, load(chunk, number, task, first), sums[0]);
    }
#endif
    return true;
  }

  /// By all of a warp: until peers have read what slots of this epoch held before.
  IMBREX_DEVICE bool wait_for_slots() {
    bool well = true;
    const Warp warp;
    if (epoch_ > 2)
      for (std::uint32_t pe = warp.thread_rank(); pe < context_.pes(); pe += warp.size())
        if (pe != context_.pe())
          well = well && context_.wait_until(args_.done + pe, shmem::Compare::greater_equal, epoch_ - 2);
    return !warp.any(!well);
  }

  /// By all of a warp, behind its last chunk.
  IMBREX_DEVICE void end(std::uint32_t warps) {
    if (context_.pes() == 1) return;
    const Warp warp;
    warp.sync();
    if (warp.thread_rank() != 0) return;
    words::fence();
    if (words::fetch_add(args_.ended, std::uint64_t{1}) % warps != warps - 1) return;
    words::fence();
    for (std::uint32_t pe = 0; pe < context_.pes(); ++pe)
      if (pe != context_.pe()) context_.signal_set(args_.done + context_.pe(), epoch_, pe);
  }

 private:
  /// What a row is solved by, besides its sum.
  struct Unknown {
    T right[columns];
    T diagonal;
  };

  IMBREX_DEVICE Unknown load(const Chunk& chunk, std::uint32_t number, const Task& task, std::uint32_t first) const {
    Unknown unknown{};
    if (chunk.own == 0) return unknown;
    unknown.diagonal = args_.diagonal[chunk.solved + number];
    const T* right = args_.right + static_cast<std::uint64_t>(task.target) * args_.columns + first;
    for (int c = 0; c < columns; ++c) unknown.right[c] = right[c];
    return unknown;
  }

  /// The packets of a term's unknown.
  IMBREX_DEVICE const shmem::Packet<T>* packets(std::uint32_t source, std::uint32_t first) const {
    const shmem::Packet<T>* base = (source & from_slot) != 0 ? slots_ : args_.solved;
    return base + static_cast<std::uint64_t>(source & ~from_slot) * args_.columns + first;
  }

  /// A lane's terms.
  IMBREX_DEVICE bool add(const Task& task, std::uint32_t end, std::uint32_t lane, std::uint32_t lanes,
                         std::uint32_t first, Sums<T, columns>& sums) {
    constexpr int batch = columns == 1 ? 4 : 1;  // terms under way at once
    for (std::uint64_t term = std::uint64_t{task.begin} + lane; term < end; term += batch * lanes) {
      const shmem::Packet<T>* from[batch];
      T value[batch];
      words::Pair pair[batch][columns];
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int b = 0; b < batch; ++b) {
        const std::uint64_t at = term + b * lanes;
        from[b] = at < end ? packets(args_.source[at], first) : nullptr;
        value[b] = at < end ? args_.value[at] : T{};
      }
      const shmem::Packet<T>* missing = poll(from, pair);
      if (missing != nullptr && !wait(missing, from, pair)) return false;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
      for (int b = 0; b < batch; ++b)
        if (from[b] != nullptr)
          for (int c = 0; c < columns; ++c)
            sums.of[c] =
                std::fma(value[b], words::cast<T>(static_cast<words::BitsOf<T>>(pair[b][c].first)), sums.of[c]);
    }
    return true;
  }

  /// Loads packets; one that has not come yet, or null.
  template <int batch>
  IMBREX_DEVICE const shmem::Packet<T>* poll(const shmem::Packet<T>* const (&from)[batch],
                                             words::Pair (&pair)[batch][columns]) const {
    const shmem::Packet<T>* missing = nullptr;
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int b = 0; b < batch; ++b)
      for (int c = 0; c < columns; ++c)
        if (from[b] != nullptr) pair[b][c] = words::load_pair(from[b] + c);
#if defined(__CUDA_ARCH__)
#pragma unroll
#endif
    for (int b = 0; b < batch; ++b)
      for (int c = 0; c < columns; ++c)
        if (from[b] != nullptr && pair[b][c].second != epoch_) missing = from[b] + c;
    return missing;
  }

  /// Until they all have.
  template <int batch>
  IMBREX_DEVICE bool wait(const shmem::Packet<T>* missing, const shmem::Packet<T>* const (&from)[batch],
                          words::Pair (&pair)[batch][columns]) {
    shmem::Signal seen = epoch_ - 1;
    return context_.template wait<crowd>(shmem::FaultKind::wait, context_.pe(), &missing->signal, epoch_, seen,
                                         [&] { return poll(from, pair) == nullptr; });
  }

  IMBREX_DEVICE void finish(const Chunk& chunk, std::uint32_t number, const Task& task, std::uint32_t first,
                            const Unknown& unknown, const Sums<T, columns>& sums) {
    if (chunk.own == 0) {
      for (int c = 0; c < columns; ++c)
        context_.put_packet(slots_ + static_cast<std::uint64_t>(task.target) * args_.columns + first + c, sums.of[c],
                            epoch_, task.pe);
      return;
    }
    shmem::Packet<T>* solved = args_.solved + static_cast<std::uint64_t>(chunk.solved + number) * args_.columns + first;
    T* result = args_.result + static_cast<std::uint64_t>(task.target) * args_.columns + first;
    for (int c = 0; c < columns; ++c) {
      const T x = (unknown.right[c] - sums.of[c]) / unknown.diagonal;
      words::store_pair(solved + c, {words::cast<words::BitsOf<T>>(x), epoch_});
      result[c] = x;
    }
  }

  shmem::Context<Transport>& context_;
  const SystemArgs<T>& args_;
  std::uint64_t epoch_;
  shmem::Packet<T>* slots_;
};

/// The calling warp's number in the grid, and how many there are.
struct GridWarps {
  std::uint32_t number, count;
};
IMBREX_DEVICE GridWarps grid_warps() {
  const shmem::Block block;
  const Warp warp;
  const std::uint32_t each = block.size() / warp.size();
  return {shmem::block_index() * each + block.thread_rank() / warp.size(), shmem::block_count() * each};
}

/// In one kernel.
template <typename T, int columns, typename Transport = shmem::LoadStore>
IMBREX_KERNEL solve_in_kernel(shmem::Handle handle, SystemArgs<T> args) {
  shmem::Context<Transport> context(handle);
  if (!context) return;
  const Warp warp;
  const std::uint32_t warps = grid_warps().count, groups = args.columns / columns;
  const std::uint64_t tickets = std::uint64_t{args.chunk_count} * groups, numbers = tickets + warps;
  const auto draw = [&] {
    return warp.thread_rank() == 0 ? words::fetch_add(args.drawn, std::uint64_t{1}) : std::uint64_t{0};
  };
  const auto from_leader = [](std::uint64_t number) {
#if defined(__CUDA_ARCH__)
    return __shfl_sync(0xffffffffu, static_cast<unsigned long long>(number), 0);
#else
    return number;
#endif
  };
  std::uint64_t number = from_leader(draw());
  const std::uint64_t base = number / numbers * numbers;
  Solve<T, columns, Transport> solve(context, args, number / numbers + 1);
  if (!solve.wait_for_slots()) return;
  while (number - base < tickets) {
    const std::uint64_t next = draw();
    const std::uint64_t ticket = number - base;
    // NOTE: a division of 64 bits takes as long as a task's sum.
    const std::uint64_t which = groups == 1 ? ticket : ticket / groups;
    const auto group = static_cast<std::uint32_t>(ticket - which * groups);
    if (!solve.chunk(args.chunks[which], group * columns)) return;
    number = from_leader(next);
  }
  solve.end(warps);
}

/// One step at kernel boundaries: chunks [begin, end).
template <typename T, int columns, typename Transport = shmem::LoadStore>
IMBREX_KERNEL solve_step(shmem::Handle handle, SystemArgs<T> args, std::uint64_t epoch, std::uint32_t begin,
                         std::uint32_t end) {
  shmem::Context<Transport> context(handle);
  if (!context) return;
  Solve<T, columns, Transport> solve(context, args, epoch);
  const GridWarps warps = grid_warps();
  const std::uint32_t groups = args.columns / columns;
  for (std::uint64_t i = warps.number; i < std::uint64_t{end - begin} * groups; i += warps.count)
    if (!solve.chunk(args.chunks[begin + i / groups], static_cast<std::uint32_t>(i % groups) * columns)) return;
}

}  // namespace
}  // namespace imbrex::apps::sparse
