// The lookup's kernel.
//
// A persistent grid. The work is cut into items, each some bags of one piece, which gather and store about as many
// bytes as any other; a warp takes one after the other. Lanes form teams, 16 bytes a lane: one team adds a row of 128
// fp16. Indices of consecutive bags lie side by side, so a team has eight rows in flight whether its bags hold one row
// or a hundred, and closes a bag where it ends. Every bag is added by one team in the order of its indices: which one
// does not matter, and the CPU's lookup gives the same bits.
//
// Order. A round is a slice of every strip, such as the rows of one rank. In a round, items of large tables come table
// by table, for all strips in turn, and those of small tables in between: so rows of a table that are read again are
// still in the caches, and a link that is slow keeps no warp from what goes elsewhere. Each further slice costs once
// more what the first rows of every table cost.
//
// Protocol. All warps pass all rounds. The last warp of a block to pass one counts its block, after a fence for the
// GPU; the last block's fences for the system and adds to the counters of the strips that have a slice in the round.
// Each fence sees those before it, so that all stores of a slice come before its post.
#pragma once

#include "embedding/cuda/findings.cuh"
#include "embedding/cuda/look_up_args.hpp"
#include "embedding/cuda/vectors.cuh"

namespace imbrex::embedding {

inline constexpr std::uint32_t all_lanes = 0xffffffffu, no_row = 0xffffffffu;

/// In shared memory, a warp's: the ends of its item's bags, and after these what a misfit of the item is told with. The
/// sums leave no registers for that.
enum Ends : std::uint32_t {
  misfit_place = most_item_bags + 1,  ///< ~position of the first index that is no row, or 0
  first_place,                        ///< the first bag, among those of all tables
  bags_place,                         ///< how many there are
  rows_place,                         ///< of their table
  ends_words
};

/// The offset in front of a table's first bag, whatever it says.
__device__ __forceinline__ std::uint32_t table_begin(const LookUpArgs& a, std::uint32_t table) {
  const auto offset = static_cast<std::uint64_t>(number_at(a.offsets, a.wide, table * a.batch));
  return offset <= a.count ? static_cast<std::uint32_t>(offset) : a.count;
}

/// How items are cut, in the cut_bytes of shared memory: the same in all blocks.
struct Cut {
  std::uint32_t* first;   ///< [pieces + 1] the first item of each piece in a slice of one strip
  std::uint32_t* passed;  ///< [rounds] warps of this block that have passed each
  std::uint16_t* bags;    ///< [pieces] that an item has
  std::uint64_t* small;   ///< [1] share of the items of small tables, times 2^32, rounded up
};

/// By the whole block.
template <int row_bytes, int sum_bytes>
__device__ void cut_items(const LookUpArgs& a, const Cut& cut, unsigned long long& all) {
  if (threadIdx.x == 0) all = 0;
  for (std::uint32_t i = threadIdx.x; i < a.slices; i += look_up_threads) cut.passed[i] = 0;
  __syncthreads();
  for (std::uint32_t p = threadIdx.x; p < a.piece_count; p += look_up_threads) {
    const Piece& piece = a.pieces[p];
    const std::uint32_t begin = table_begin(a, piece.table), end = table_begin(a, piece.table + 1);
    const std::uint64_t rows = end > begin ? end - begin : 0;
    const std::uint64_t bytes = (rows * row_bytes + std::uint64_t{a.batch} * sum_bytes) * piece.lanes;
    atomicAdd(&all, static_cast<unsigned long long>(bytes));
    cut.first[p] = static_cast<std::uint32_t>(codec::smaller<std::uint64_t>(bytes / a.batch, 1u << 30));
  }
  __syncthreads();
  // Small calls have several items for each warp, too.
  const std::uint64_t share = all / (std::uint64_t{gridDim.x} * look_up_warps * 6);
  const auto wanted = static_cast<std::uint32_t>(
      codec::larger<std::uint64_t>(2048, codec::smaller<std::uint64_t>(share, a.item_bytes)));
  for (std::uint32_t p = threadIdx.x; p < a.piece_count; p += look_up_threads) {
    const std::uint32_t teams = 32u / a.pieces[p].team;
    const std::uint32_t fit = codec::smaller(wanted / codec::larger(cut.first[p], 1u), most_item_bags);
    const std::uint32_t bags = codec::larger(fit / teams, 1u) * teams;
    cut.bags[p] = static_cast<std::uint16_t>(bags);
    cut.first[p] = (a.slice_rows + bags - 1) / bags;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    std::uint32_t before = 0;
    for (std::uint32_t p = threadIdx.x; p - threadIdx.x < a.piece_count; p += 32) {
      const std::uint32_t own = p < a.piece_count ? cut.first[p] : 0;
      std::uint32_t sum = own;
      for (std::uint32_t step = 1; step < 32; step *= 2) {
        const std::uint32_t left = __shfl_up_sync(all_lanes, sum, step);
        if (threadIdx.x >= step) sum += left;
      }
      if (p < a.piece_count) cut.first[p] = before + sum - own;
      before += __shfl_sync(all_lanes, sum, 31);
    }
    if (threadIdx.x == 0) cut.first[a.piece_count] = before;
    __syncwarp();
    if (threadIdx.x == 0) *cut.small = ((std::uint64_t{cut.first[a.small_pieces]} << 32) + before - 1) / before;
  }
  __syncthreads();
}

/// Which item comes at `place` of a round that has `small` ones of small tables, whose share is as in Cut. Items of
/// large tables come table by table, whose popular rows have the caches to themselves meanwhile; in between come the
/// small ones, whose tables the second level holds anyway.
__device__ __forceinline__ std::uint32_t in_turn(std::uint32_t place, std::uint32_t small, std::uint64_t share) {
  const auto before = static_cast<std::uint32_t>(place * share >> 32);
  const auto behind = static_cast<std::uint32_t>((place + 1) * share >> 32);
  return behind > before ? before : small + place - before;
}

/// The last place of `values` from `begin` to `end` whose value is at most `value`; the first one is.
__device__ __forceinline__ std::uint32_t last_at_most(const std::uint32_t* values, std::uint32_t begin,
                                                      std::uint32_t end, std::uint32_t value) {
  while (end - begin > 1) {
    const std::uint32_t middle = (begin + end) / 2;
    (values[middle] <= value ? begin : end) = middle;
  }
  return begin;
}

/// The offsets around `bags` bags, by one warp. Where one does not fit, that is found, and all bags are empty.
__device__ __forceinline__ void read_ends(const LookUpArgs& a, std::uint32_t first, std::uint32_t bags,
                                          std::uint32_t rows, std::uint32_t* ends, std::uint32_t lane) {
  std::uint32_t wrong = no_row;
  __syncwarp();  // all have read the last item's
  if (lane == 0) ends[misfit_place] = 0, ends[first_place] = first, ends[bags_place] = bags, ends[rows_place] = rows;
  for (std::uint32_t i = lane; i <= bags; i += 32) {
    const auto offset = static_cast<std::uint64_t>(number_at(a.offsets, a.wide, first + i));
    if (offset > a.count) wrong = codec::smaller(wrong, i);
    ends[i] = offset <= a.count ? static_cast<std::uint32_t>(offset) : 0;
  }
  __syncwarp();
  for (std::uint32_t i = lane; i < bags; i += 32)
    if (ends[i + 1] < ends[i]) wrong = codec::smaller(wrong, i + 1);
  if (__any_sync(all_lanes, wrong != no_row)) {
    if (wrong != no_row) find_offset(a, first + wrong);
    __syncwarp();
    for (std::uint32_t i = lane; i <= bags; i += 32) ends[i] = 0;
  }
  __syncwarp();
}

/// Writes down the first misfit of an item, by one warp.
__device__ __forceinline__ void tell_misfit(const LookUpArgs& a, const std::uint32_t* ends, std::uint32_t lane) {
  __syncwarp();
  if (lane != 0 || ends[misfit_place] == 0) return;
  const std::uint32_t position = ~ends[misfit_place];
  find_index(a, position, number_at(a.indices, a.wide, position), ends[rows_place],
             [&] { return ends[first_place] + last_at_most(ends, 0, ends[bags_place], position); });
}

/// The first bag of a team, so that each has as many rows and bags together.
__device__ __forceinline__ std::uint32_t first_bag(const std::uint32_t* ends, std::uint32_t bags, std::uint32_t team,
                                                   std::uint32_t teams) {
  if (team == 0 || team == teams) return team == 0 ? 0 : bags;
  const auto wanted = static_cast<std::uint32_t>(std::uint64_t{ends[bags] - ends[0] + bags} * team / teams);
  std::uint32_t begin = 0, end = bags;
  while (begin < end) {
    const std::uint32_t middle = (begin + end) / 2;
    if (ends[middle] - ends[0] + middle < wanted)
      begin = middle + 1;
    else
      end = middle;
  }
  return begin;
}

/// Sums of `bags` bags, whose offsets are `ends`, by one warp. `out`: the first bag's row, at the piece's first column.
template <TableRows type, int columns, Type out_type, bool weighted>
__device__ __forceinline__ void add_bags(const LookUpArgs& a, const Piece& piece, std::uint32_t bags,
                                         std::uint32_t* ends, std::byte* out, std::uint32_t lane) {
  using Held = Vector<type, columns>;
  const std::uint32_t place = lane % piece.team, base = lane - place, team = lane / piece.team;
  const std::uint32_t teams = 32u / piece.team;
  const bool holds = place < piece.lanes;
  std::uint32_t bag = first_bag(ends, bags, team, teams);
  const std::uint32_t last = first_bag(ends, bags, team + 1, teams);
  std::uint32_t at = ends[bag];
  const std::uint32_t end = ends[last];
  const std::uint64_t policy = cache_policy(std::uint64_t{piece.count} * piece.pitch > a.kept_bytes);
  const std::byte* rows = piece.rows + place * Held::bytes;
  out += std::uint64_t{bag} * a.out_pitch + place * (columns * size_of(out_type));

  float sum[columns] = {};
  std::uint32_t left = bag < last ? ends[bag + 1] - at : 0;  // rows of the bag that are still to come
  std::uint32_t skipped = 0;                                 // of its indices
  // Closes the bag, and the empty ones that follow. After the last one `left` is 0, and never is again.
  const auto close = [&] {
    do {
      if (a.mean) {
        const std::uint32_t added = ends[bag + 1] - ends[bag] - skipped;
        const float share = __frcp_rn(static_cast<float>(added != 0 ? added : 1u));
#pragma unroll
        for (int i = 0; i < columns; ++i) sum[i] = codec::product(sum[i], share);
        skipped = 0;
      }
      if (holds) store_sums<out_type, columns>(out, sum);
#pragma unroll
      for (int i = 0; i < columns; ++i) sum[i] = 0.0f;
      out += a.out_pitch;
      ++bag;
      left = bag < last ? ends[bag + 1] - ends[bag] : 0;
    } while (left == 0 && bag < last);
  };
  if (bag < last && left == 0) close();

  std::int64_t index = 0;
  float weight = 0.0f;
  bool wanted = false;
  const auto fetch = [&] {  // by the first lanes of the team, an index each
    wanted = place < rows_in_flight && at + place < end;
    if (wanted) {
      index = number_at(a.indices, a.wide, at + place);
      if constexpr (weighted) weight = __ldg(a.weights + at + place);
    }
  };
  fetch();
  while (__any_sync(all_lanes, at < end)) {
    const bool is_row = static_cast<std::uint64_t>(index) < piece.count;
    const std::uint32_t row = wanted && is_row ? static_cast<std::uint32_t>(index) : no_row;
    const float row_weight = row != no_row ? weight : 0.0f;
    const std::uint32_t misfits = __ballot_sync(all_lanes, wanted && !is_row) >> base;
    if (wanted && !is_row && piece.leads) {
      atomicMax(ends + misfit_place, ~(at + place));
      atomicAdd(&a.findings->ignored, 1ull);
    }
    Held held[rows_in_flight];
#pragma unroll
    for (std::uint32_t u = 0; u < rows_in_flight; ++u) {
      const std::uint32_t r = __shfl_sync(all_lanes, row, static_cast<int>(base + u));
      const std::byte* from = rows + std::uint64_t{r} * piece.pitch;
      load_vector(held[u], from, from - place * Held::bytes + piece.scale, r != no_row && holds, policy);
    }
    at += rows_in_flight;
    fetch();
#pragma unroll
    for (std::uint32_t u = 0; u < rows_in_flight; ++u) {
      const float w = weighted ? __shfl_sync(all_lanes, row_weight, static_cast<int>(base + u)) : 1.0f;
#pragma unroll
      for (int i = 0; i < columns; ++i) {
        if constexpr (weighted)
          sum[i] = codec::multiply_add(w, element(held[u], i), sum[i]);
        else
          sum[i] += element(held[u], i);
      }
      skipped += misfits >> u & 1u;
      if (--left == 0) close();
    }
  }
}

/// n / strips.
__device__ __forceinline__ std::uint32_t by_strips(const LookUpArgs& a, std::uint32_t n) {
  return a.strips == 1 ? n : static_cast<std::uint32_t>(__umul64hi(n, a.strips_inverse));
}

/// Bytes to what this epoch has of things that come twice, `stride` apart.
__device__ __forceinline__ std::uint64_t copy_of(std::uint64_t epoch, std::uint64_t stride) {
  return (epoch & 1u) != 0 ? stride : 0;
}

/// Waits until the strip may be stored to. By one warp; `entered`: the strips that it knows may be.
__device__ __forceinline__ bool enter(const LookUpArgs& a, std::uint32_t strip, std::uint64_t& entered,
                                      std::uint64_t epoch, std::uint32_t lane) {
  if (!a.joint || a.to[strip].entered == nullptr || (entered >> strip & 1u) != 0) return true;
  bool met = true;
  if (lane == 0) {
    const std::uint32_t expected =
        a.to[strip].entered_first + static_cast<std::uint32_t>(epoch >> a.alternates) * a.to[strip].entered_step;
    const auto* counter =
        static_cast<const std::byte*>(a.to[strip].entered) + copy_of(epoch & a.alternates, a.counter_stride);
    met = device::wait_for(a.group, counter, expected, [&](device::Fault& fault, std::uint32_t seen) {
      fault.kind = strip_fault, fault.place[0] = a.to[strip].name;
      fault.expected = expected, fault.seen = seen, fault.epoch = epoch;
    });
  }
  entered |= a.one_wait ? ~std::uint64_t{0} : std::uint64_t{1} << strip;
  return __shfl_sync(all_lanes, met, 0);
}

/// Stores that this thread has seen come before it, for a thread that sees it and fences. It drops nothing from the
/// first level of cache, as a fence of both kinds does.
__device__ __forceinline__ std::uint32_t add_release(std::uint32_t* to, std::uint32_t value) {
  std::uint32_t old;
  asm volatile("atom.add.release.gpu.global.u32 %0, [%1], %2;" : "=r"(old) : "l"(to), "r"(value) : "memory");
  return old;
}

/// Passes the rounds from `from` to `to`, by one warp; makes the posts of those that this completes.
__device__ __forceinline__ void pass(const LookUpArgs& a, const Cut& cut, std::uint32_t from, std::uint32_t to,
                                     std::uint64_t epoch, std::uint32_t lane) {
  if (!a.joint) return;
  __syncwarp();
  if (lane != 0) return;
  __threadfence_block();
  for (std::uint32_t round = from; round < to; ++round) {
    if (atomicAdd(cut.passed + round, 1u) != look_up_warps - 1) continue;
    __threadfence_block();
    if (add_release(&a.progress->passed[round], 1u) != gridDim.x - 1) continue;
    a.progress->passed[round] = 0;
    device::pause_for_tests(a.group, epoch, round);
    if (!device::may_post(a.group)) continue;
    const std::uint64_t set = copy_of(epoch & a.alternates, a.counter_stride);
    for (std::uint32_t strip = 0; strip < a.strips; ++strip)
      if (a.to[strip].done != nullptr && round * a.slice_rows < a.to[strip].rows)
        device::add_relaxed(static_cast<std::byte*>(a.to[strip].done) + round * a.done_step + set, a.post);
  }
}

template <TableRows type, int columns, Type out_type, bool weighted>
__global__ void __launch_bounds__(look_up_threads, 3) look_up(const __grid_constant__ LookUpArgs a) {
  extern __shared__ std::uint32_t cut_memory[];
  __shared__ std::uint32_t all_ends[look_up_warps][ends_words];
  __shared__ unsigned long long all_bytes;
  __shared__ std::uint64_t read, small_share;
  __shared__ std::uint32_t given_up;  // by a kernel before it: what it waited for has not come
  constexpr int sum_bytes = columns * static_cast<int>(size_of(out_type));
  device::wait_for_stream();
  std::uint32_t* passed = cut_memory + a.piece_count + 1;
  const Cut cut{cut_memory, passed, reinterpret_cast<std::uint16_t*>(passed + a.slices), &small_share};
  if (a.joint && threadIdx.x == 0) {
    read = device::read_epoch(a.group);
    given_up = device::load_relaxed(&a.group.own->abort);
  }
  cut_items<Vector<type, columns>::bytes, sum_bytes>(a, cut, all_bytes);
  const std::uint64_t epoch = a.joint ? read : 0;

  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = gridDim.x * look_up_warps;
  std::uint32_t* ends = all_ends[warp];
  const std::uint32_t slice_items = cut.first[a.piece_count], round_items = slice_items * a.strips;
  const std::uint32_t small_items = cut.first[a.small_pieces] * a.strips;
  std::uint32_t round = 0;
  std::uint64_t entered = 0;
  bool met = !a.joint || given_up == 0;
  for (std::uint32_t item = warp * gridDim.x + blockIdx.x; met && item < round_items * a.slices;) {
    std::uint32_t next = 0;
    if (lane == 0) next = atomicAdd(&a.progress->items, 1u);  // comes while this one is worked at
    const std::uint32_t last_round = round;
    while (item >= (round + 1) * round_items) ++round;
    if (round != last_round) pass(a, cut, last_round, round, epoch, lane);
    const std::uint32_t turn = in_turn(item - round * round_items, small_items, small_share);
    const std::uint32_t p = last_at_most(cut.first, 0, a.piece_count, by_strips(a, turn));
    const std::uint32_t own = turn - cut.first[p] * a.strips, number = by_strips(a, own);
    const std::uint32_t strip = own - number * a.strips;
    met = enter(a, strip, entered, epoch, lane);
    if (!met) break;
    const Piece piece = a.pieces[p];
    const std::uint32_t slice_end = codec::smaller(a.to[strip].rows, (round + 1) * a.slice_rows);
    const std::uint32_t row = round * a.slice_rows + number * cut.bags[p];
    if (row < slice_end) {  // a strip's last slice may be shorter, and strips may have fewer
      const std::uint32_t bags = codec::smaller<std::uint32_t>(cut.bags[p], slice_end - row);
      read_ends(a, piece.table * a.batch + a.to[strip].first_row + row, bags, piece.count, ends, lane);
      std::byte* out = static_cast<std::byte*>(a.to[strip].out) + copy_of(epoch, a.out_stride) +
                       std::uint64_t{row} * a.out_pitch + piece.out;
      add_bags<type, columns, out_type, weighted>(a, piece, bags, ends, out, lane);
      tell_misfit(a, ends, lane);
    }
    item = warps + __shfl_sync(all_lanes, next, 0);
  }
  if (met) pass(a, cut, round, a.slices, epoch, lane);

  __syncthreads();
  if (threadIdx.x != 0) return;
  if (atomicAdd(&a.progress->blocks, 1u) == gridDim.x - 1) a.progress->items = 0, a.progress->blocks = 0;
  if (a.advances) device::advance_epoch(a.group, epoch);
}

}  // namespace imbrex::embedding
