// One rank's plan as the kernels read it: flat tables in device memory. The same header on both sides; sizes and
// offsets are asserted, so host and device cannot drift apart.
//
// Protocol. Counters are 32 bits wide, count posts, wrap, and are never reset. Epoch e uses counter set e % copies; a
// signal that receives p posts an epoch must show (e / copies) * p + count before a wait for `count` of them is met.
// The epoch lies in device memory: each block of a kernel reads it once, and the last one to have done so advances it
// for the next kernel. Copy engines copy their epoch's turn as a flag, perhaps later than that: even and odd epochs
// have one each. So a captured graph of `copies` epochs replays without help.
#pragma once

#include <cstddef>
#include <cstdint>

#include "execute/cuda/tables/plan_turns.hpp"
#include "imbrex/device/protocol.hpp"
#include "imbrex/types.hpp"

namespace imbrex::cuda {

enum class TaskKind : std::uint8_t {
  none,       ///< fills up a cluster's pair; nothing to do
  peer_cta,   ///< loads beside its pair's tile, which shares B with it, and stores nothing
  tile,       ///< a block of the product
  signal,     ///< waits and posts only
  reduction,  ///< sums regions where no tile does
  transfer,   ///< copies its one add to its one store
  block,      ///< work that is no product; the adds are what it reads. Its numbers: see BlockNumbers
};

/// Waits of a task: first `load_waits`, by ascending k_begin, then `epilogue_waits`.
struct alignas(16) WaitEntry {
  std::uint32_t signal;
  std::uint32_t posts;  ///< that the signal receives in an epoch
  std::uint32_t count;
  std::uint32_t k_begin;  ///< columns of A before this one may be loaded earlier
};
static_assert(sizeof(WaitEntry) == 16);

/// The counter's address in set 0, as this rank maps it.
struct PostEntry {
  std::uint64_t counter;
};
static_assert(sizeof(PostEntry) == 8);

/// How a fragment slot is laid out.
enum class SlotOrder : std::uint8_t {
  rows,       ///< not a slot, or a slot in row-major order
  registers,  ///< a full tile's accumulators, 16 bytes a thread, in the order of the kernel's registers
};

/// What a region's address is relative to.
enum class Base : std::uint8_t {
  heap,     ///< nothing: it is an address
  out,      ///< this rank's output that the task's `output` says, the caller's or the one in the heap
  a,        ///< the caller's A
  a_scale,  ///< the caller's scales of A
  bias,     ///< the caller's bias of the task's `output`: the last source of a reduction; its one row, at a pitch of 0,
            ///< is every row's
};

/// B that one A is multiplied by: imbrex::max_products.
inline constexpr int most_products = 3;
/// Outputs are the products', by their numbers, and then the gathered A.
inline constexpr int gathered_output = most_products, most_outputs = most_products + 1;

/// A region that a task adds, reads or stores to. `row`, `col`: its place in the tile (stores).
struct alignas(16) RegionEntry {
  std::uint64_t address;      ///< of the first element in copy 0
  std::uint64_t copy_stride;  ///< to copy 1; 0 where there is one copy
  std::uint64_t pitch;        ///< bytes from row to row
  std::uint32_t row, col, rows, cols;
  Type type;
  Base base;
  SlotOrder order;
  std::uint8_t unused[5];
};
static_assert(sizeof(RegionEntry) == 48 && offsetof(RegionEntry, row) == 24 && offsetof(RegionEntry, type) == 40);

struct alignas(128) TaskEntry {
  TaskKind kind;
  std::uint8_t a_source;                ///< 0: the caller's A; 1: the gathered workspace
  std::uint16_t queue;                  ///< index in the plan, for messages
  std::uint32_t task;                   ///< index in that queue, for messages
  std::uint32_t a_row, b_col;           ///< first row of A, first column of B
  std::uint32_t rows, cols;             ///< of the tile; the rest of the block is neither stored nor added
  std::uint32_t k_begin, k_end;         ///< the stretch of K that the tile sums over, of whole k_units or up to K's end
  std::uint32_t waits, regions, posts;  ///< first entry in each table; regions: adds, then stores
  std::uint16_t load_waits, epilogue_waits;
  std::uint16_t adds, stores;
  std::uint16_t own;  ///< position of the product among the adds
  std::uint16_t post_count;
  std::uint32_t slot_stages;  ///< stages of the main loop that bring slots; the same for both tiles of a pair
  std::uint8_t bias;          ///< tiles: 1: after the slots, the bias of the tile's columns is added
  std::uint8_t wide_stores;   ///< tiles: 1: stores all go to 16-bit rows, of whole 16 bytes if the caller's output does
  std::uint16_t a_scale;      ///< tiles of problems with scales a tensor: which of the source's is A's
  RegionEntry store;          ///< tiles: the first one, too, since most tiles have no other
  PostEntry post;             ///< the first one
  std::uint32_t output;       ///< the one that its regions lie in; of a tile the product's number, its B's, too
  std::uint32_t unused;
};
static_assert(sizeof(TaskEntry) == 128 && offsetof(TaskEntry, waits) == 32 && offsetof(TaskEntry, load_waits) == 44 &&
              offsetof(TaskEntry, store) == 64);

/// Sums that are launched by themselves, with more sources and destinations than this, are refused.
inline constexpr std::size_t most_move_regions = 16;

/// What a block is, which lies where a tile's numbers do.
struct BlockNumbers {
  std::uint32_t kind;     ///< WorkKind
  std::uint32_t args[4];  ///< whose meaning is the kind's
  std::uint32_t share, shares;
};

constexpr void put(TaskEntry& task, const BlockNumbers& block) {
  task.slot_stages = block.kind;
  task.a_row = block.args[0], task.b_col = block.args[1];
  task.k_begin = block.args[2], task.k_end = block.args[3];
  task.rows = block.share, task.cols = block.shares;
}

constexpr BlockNumbers block_of(const TaskEntry& task) {
  return {task.slot_stages, {task.a_row, task.b_col, task.k_begin, task.k_end}, task.rows, task.cols};
}

/// How a tile's slots come through the stages of the main loop. A stage holds planes: 16 bytes for each of the threads
/// that share a tile. A unit is eight accumulators of a thread, a plane of each slot.
struct SlotStages {
  std::uint32_t units;  ///< of every slot, in one stage, slot by slot
  std::uint32_t count;  ///< stages of one tile; 0: the slots do not come this way
};

/// The stages of a tile of `tile_units` units that adds slots of 16-bit elements, where a stage has `planes` planes;
/// none: the kernel's stages bring no slots.
constexpr SlotStages slot_stages(std::uint32_t tile_units, std::uint32_t planes, std::uint32_t slots) {
  // Slots of 2 and 4 ranks: the sums that the kernels unroll. With 7 slots at once the accumulators would not fit the
  // registers.
  if (planes == 0 || (slots != 1 && slots != 3)) return {0, 0};
  const std::uint32_t fit = planes / slots, units = fit < tile_units ? fit : tile_units;
  return {units, (tile_units + units - 1) / units};
}

/// Tasks of one queue and the workers (clusters of thread blocks) that take them in turn.
struct QueueSpan {
  std::uint32_t first, count;  ///< in entries per worker: entry i is cluster_size task entries
  std::uint32_t first_worker, workers;
};
inline constexpr int max_compute_queues = 4;

/// After each rank's device::State: what copy engines take part in. Zero at first, except `turns`.
struct alignas(64) CopyState {
  std::uint32_t turns[2];  ///< by epoch % 2: epoch / copies + 1, the flag that a copy engine copies after its data
  std::uint32_t arrivals;  ///< epochs that ranks skipped, one addition of each rank for each; see epoch.hpp
  std::uint32_t rounds;    ///< that this rank skipped
  std::uint32_t unused[12];
};
static_assert(sizeof(CopyState) == 64 && offsetof(CopyState, arrivals) == 8);

IMBREX_DEVICE CopyState& copies_of(device::State& state) { return *reinterpret_cast<CopyState*>(&state + 1); }

/// device::Fault::kind, and what its places are.
enum class FaultKind : std::uint32_t {
  task,     ///< queue, task, signal: expected so many posts of the epoch
  skip,     ///< a round over all ranks after a captured epoch: expected so many ranks
  arrival,  ///< queue, task: expected so many blocks of the concurrent kernel to have begun
  block,    ///< place in the table: the task that it is about to store for; words, not posts of the epoch
};

/// When the parts of a task began and ended, in nanoseconds of the GPU's global timer; 0: there was no such part. Kept
/// for timelines.
struct alignas(64) TaskTimes {
  std::uint64_t begin, multiplied, end;  ///< taken up, by the threads that do it; a tile's product; done
  std::uint64_t load_wait, load_met;     ///< for what must be there before it begins, or before A is loaded
  std::uint64_t add_wait, add_met;       ///< for what a tile adds to its product
  std::uint32_t sm, group;               ///< SM; in ping-pong, which of the groups
};
static_assert(sizeof(TaskTimes) == 64);

struct TableView {
  const TaskEntry* tasks;
  const WaitEntry* waits;
  const RegionEntry* regions;
  const PostEntry* posts;
  TaskTimes* times;  ///< by task; null: no timeline
  QueueSpan queues[max_compute_queues];
  std::uint32_t queue_count;
};

/// Everything that waits and posts need.
struct Protocol : device::Group {
  std::byte* counters;       ///< this rank's, set 0
  std::uint64_t set_stride;  ///< bytes from set 0 to set 1
  std::uint32_t counter_stride, copies;
  std::uint32_t self_advancing;  ///< the kernel advances the epoch: by one
  PlanTurns turns;               ///< of plans that share counters
};

/// A launch of the GEMM: plain values, by value into the kernel.
struct GemmArgs {
  TableView table;
  Protocol protocol;
  const void* a[2][2];  ///< by source and copy, row-major; the same pointer twice where there is one copy
  std::int64_t a_rows[2];
  const void* b[most_products];  ///< null after the last one
  void* out[most_outputs];
  const void* bias[most_outputs];    ///< null where there is none
  std::int64_t n[most_products], k;  ///< columns of each B; columns of A
  std::int64_t lda[2];               ///< elements from row to row of A, by source
  std::int64_t ldb[most_products];   ///< from row to row of each B, or where it lies by columns from column to column
  std::uint32_t unit_ns;             ///< a block's share of the link takes this long for a unit of its tile's stores
  std::uint32_t b_by_columns;        ///< 1: every B lies by columns
  std::uint32_t row_scales;  ///< 1: each row of A and each column of B has its scale; 0: a tile's A and its B have one
  const float* a_scale[2][2];  ///< like a; null where the problem has no scales
  const float* b_scale;        ///< of the only B
};

/// The scale of the tile's first row, and of its first column. Scales of other rows and columns follow, where they have
/// any.
struct TileScales {
  const float *a, *b;
};

/// Slices of `slice` columns that a tile's stretch of K has.
constexpr int slices_of(const TaskEntry& task, int slice) {
  const auto by = static_cast<std::uint32_t>(slice);
  return static_cast<int>((task.k_end - task.k_begin + by - 1) / by);  // K and a slice are below 2^31
}

constexpr TileScales scales_of(const GemmArgs& args, const TaskEntry& task, std::uint32_t copy) {
  if (args.row_scales != 0) return {args.a_scale[task.a_source][copy] + task.a_row, args.b_scale + task.b_col};
  return {args.a_scale[task.a_source][copy] + task.a_scale, args.b_scale};
}

}  // namespace imbrex::cuda
