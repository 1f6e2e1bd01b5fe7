// Jacobi's kernels whose field lies in memory: for GPUs as CUDA, for the CPU as C++ (docs/jacobi.md). Each source that
// includes this has its own.
#pragma once

#include <cstdint>

#include "apps/jacobi/field.hpp"
#include "imbrex/device/shmem.cuh"
#include "imbrex/device/shmem/ring/transport.hpp"

#if defined(__CUDACC__)
#define IMBREX_JACOBI_BOUNDS(threads, blocks) __launch_bounds__(threads, blocks)
#define IMBREX_JACOBI_CALL __host__ __device__ __noinline__  // sweeps keep no registers for it
#else
#define IMBREX_JACOBI_CALL inline
#define IMBREX_JACOBI_BOUNDS(threads, blocks)
#endif
#if defined(__CUDA_ARCH__)
#define IMBREX_JACOBI_UNROLL _Pragma("unroll")
#else
#define IMBREX_JACOBI_UNROLL
#endif

namespace imbrex::apps::jacobi {
namespace {

using shmem::Block;
using shmem::Signal;

/// 8 bytes of elements, and the number of the sweep that made them.
using EdgePacket = shmem::Packet<std::uint64_t>;

/// At the same place on every PE.
template <typename T>
struct Places {
  T* field[2];          ///< sweep s reads field[(s - 1) % 2] and writes field[s % 2]
  Signal* signals;      ///< [blocks][sides]: the last sweep that the neighbour there has done
  EdgePacket* packets;  ///< [blocks][sides][2][Tiling::box] (tiles.hpp)
  std::uint64_t packet_count, signal_count;
  std::uint64_t* sums;  ///< PE 0's: two words for each residual
  std::uint64_t sum_count;
  std::uint64_t* replayed;  ///< this PE's: sweeps of the graphs that were replayed before
  // The way by rings has columns apart, for west and east, by the sweep's parity.
  T* leaving[2][2];        ///< [parity][side - west]: what the neighbour gets
  T* landed[2][2];         ///< and what came from it
  std::uint64_t* arrived;  ///< this PE's, [parity][side - west]: blocks whose part of a column is there, of all sweeps
  std::uint32_t puts;      ///< number of the first of 8 registered ones: [side][parity]
};

/// Threads of a block: of sweeps that end with their kernel, and of those that stay.
constexpr std::uint32_t sweep_threads = 256, band_threads = 512, exchange_threads = 1024;

/// Blocks of a sweep.
constexpr std::uint32_t most_blocks = 1 << 16;

/// Part of a residual, exactly: multiples of 2^-32, and of what is left multiples of 2^-64.
struct Sum {
  std::uint64_t whole = 0, rest = 0;

  template <typename T>
  IMBREX_DEVICE void add(T change) {
    const T scaled = (change < 0 ? -change : change) * static_cast<T>(0x1p32);
    const auto part = static_cast<std::uint32_t>(scaled);  // changes are below 1
    whole += part;
    if constexpr (sizeof(T) == 8)
      rest += static_cast<std::uint64_t>((scaled - static_cast<T>(part)) * static_cast<T>(0x1p32));
  }
};

/// By all threads of the block: adds their sums to PE 0's words. Integers, so no order matters.
template <typename Context>
IMBREX_DEVICE void report(Context& context, std::uint64_t* words, Sum sum) {
  const Block block;
#if defined(__CUDA_ARCH__)
  __shared__ std::uint64_t parts[2][32];
  const std::uint32_t warps = (block.size() + 31) / 32, warp = block.thread_rank() / 32;
  for (int step = 16; step > 0; step /= 2) {
    sum.whole += __shfl_xor_sync(0xffffffffu, sum.whole, step);
    sum.rest += __shfl_xor_sync(0xffffffffu, sum.rest, step);
  }
  block.sync();
  if (block.thread_rank() % 32 == 0) parts[0][warp] = sum.whole, parts[1][warp] = sum.rest;
  block.sync();
  if (block.thread_rank() != 0) return;
  for (std::uint32_t w = 1; w < warps; ++w) sum.whole += parts[0][w], sum.rest += parts[1][w];
#endif
  if (!shmem::is_leader(block)) return;
  context.atomic_add(words, sum.whole, 0);
  if (sum.rest != 0) context.atomic_add(words + 1, sum.rest, 0);
}

template <typename T>
IMBREX_DEVICE T mean(T above, T below, T left, T right) {
  return static_cast<T>(0.25) * ((above + below) + (left + right));
}

// The field at first, both copies, and what PEs tell each other.
template <typename T>
IMBREX_KERNEL start(shmem::Handle handle, Field field, Places<T> places) {
  const Block block;
  const std::uint64_t first = block.thread_rank() + std::uint64_t{shmem::block_index()} * block.size();
  const std::uint64_t step = std::uint64_t{shmem::block_count()} * block.size();
  const std::int64_t row0 = static_cast<std::int64_t>(handle.pe() / field.grid_columns) * field.rows - 1;
  const std::int64_t column0 = static_cast<std::int64_t>(handle.pe() % field.grid_columns) * field.columns - 1;
  const std::uint64_t width = std::uint64_t{field.columns} + 2;
  for (std::uint64_t i = first; i < width * (field.rows + 2); i += step) {
    const auto row = static_cast<std::int64_t>(i / width), column = static_cast<std::int64_t>(i % width);
    const T value = first_value<T>(field.seed, row0 + row, column0 + column);
    for (T* copy : places.field) copy[field.at(row - 1, column - 1)] = value;
  }
  for (std::uint64_t i = first; i < places.signal_count; i += step) places.signals[i] = 0;
  for (std::uint64_t i = first; i < places.packet_count; i += step) places.packets[i].signal = 0;
  for (std::uint64_t i = first; i < places.sum_count; i += step) places.sums[i] = 0;
  for (std::uint64_t i = first; i < 4; i += step) places.arrived[i] = 0;
  if (first == 0) *places.replayed = 0;
}

/// Rows and columns of a PE that threads take together: rows_together x a vector each.
struct Pieces {
  std::uint32_t down, across;

  template <typename T>
  static IMBREX_DEVICE Pieces of(std::uint32_t rows, std::uint32_t columns) {
    return {(rows + rows_together - 1) / rows_together, (columns + vector_of<T> - 1) / vector_of<T>};
  }
};

template <typename T>
struct alignas(16) Vector {
  T of[vector_of<T>];
};

/// Which lines of a piece the thread has from the piece before, which it swept just now.
enum class Kept { nothing, above, below };

// One piece: `rows` rows from `row` on, `columns` columns from `column` on. `line`: its rows, and one more on either
// side.
template <bool residual, Kept kept, typename T>
IMBREX_DEVICE void sweep_piece(const Field& field, const T* from, T* to, std::uint32_t row, std::uint32_t rows,
                               std::uint32_t column, std::uint32_t columns, Vector<T> (&line)[rows_together + 2],
                               Sum& sum) {
  constexpr std::uint32_t n = vector_of<T>;
  const T* first = from + field.at(row, column);
  if constexpr (kept == Kept::above) line[0] = line[rows_together], line[1] = line[rows_together + 1];
  if constexpr (kept == Kept::below) line[rows_together] = line[0], line[rows_together + 1] = line[1];
  T left[rows_together]{}, right[rows_together]{};
  // Rows behind those belong to blocks that may be ahead.
  IMBREX_JACOBI_UNROLL
  for (std::uint32_t i = kept == Kept::above ? 2 : 0; i < rows_together + (kept == Kept::below ? 0 : 2); ++i)
    if (i < rows + 2)
      line[i] = *reinterpret_cast<const Vector<T>*>(first + (static_cast<std::int64_t>(i) - 1) * field.pitch);
  IMBREX_JACOBI_UNROLL
  for (std::uint32_t i = 0; i < rows_together; ++i)
    if (i < rows) {
      left[i] = first[static_cast<std::int64_t>(i) * field.pitch - 1];
      right[i] = first[static_cast<std::int64_t>(i) * field.pitch + n];
    }
  IMBREX_JACOBI_UNROLL
  for (std::uint32_t i = 0; i < rows_together; ++i) {
    if (i >= rows) break;
    Vector<T> made;
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t j = 0; j < n; ++j) {
      made.of[j] = mean(line[i].of[j], line[i + 2].of[j], j > 0 ? line[i + 1].of[j - 1] : left[i],
                        j + 1 < n ? line[i + 1].of[j + 1] : right[i]);
      if (residual && j < columns) sum.add(made.of[j] - line[i + 1].of[j]);
    }
    T* there = to + field.at(row + i, column);
    if (columns == n) {
      *reinterpret_cast<Vector<T>*>(there) = made;
    } else {
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t j = 0; j < n; ++j)
        if (j < columns) there[j] = made.of[j];
    }
  }
}

/// Which pieces of a PE: all, those without the outermost ones, or the outermost.
enum class Part : std::uint32_t { all, inner, edge };

IMBREX_DEVICE std::uint32_t count_of(const Pieces& pieces, Part part) {
  const std::uint32_t all = pieces.down * pieces.across;
  const std::uint32_t inner = pieces.down > 2 && pieces.across > 2 ? (pieces.down - 2) * (pieces.across - 2) : 0;
  return part == Part::all ? all : part == Part::inner ? inner : all - inner;
}

struct PiecePlace {
  std::uint32_t row, column;
};

IMBREX_DEVICE PiecePlace place_of(const Pieces& pieces, Part part, std::uint32_t number) {
  if (part == Part::all || count_of(pieces, Part::inner) == 0) return {number / pieces.across, number % pieces.across};
  if (part == Part::inner) return {number / (pieces.across - 2) + 1, number % (pieces.across - 2) + 1};
  // Top row, bottom row, and then from both sides what is between them.
  if (number < pieces.across) return {0, number};
  number -= pieces.across;
  if (number < pieces.across) return {pieces.down - 1, number};
  number -= pieces.across;
  return {number / 2 + 1, number % 2 == 0 ? 0 : pieces.across - 1};
}

IMBREX_DEVICE std::uint32_t least(std::uint32_t x, std::uint32_t y) { return x < y ? x : y; }

/// The number of a sweep: as launched, and by how much graphs have gone on since.
template <typename T>
IMBREX_DEVICE std::uint64_t number_of(const Places<T>& places, std::uint64_t sweep) {
  return sweep + *places.replayed;
}

// One sweep over a part of the PE, without neighbours. `sweep` counts from 1.
template <bool residual, typename T>
IMBREX_KERNEL IMBREX_JACOBI_BOUNDS(sweep_threads, 4) sweep_part(shmem::Handle handle, Field field, Places<T> places,
                                                                std::uint64_t sweep, std::uint64_t every, Part part) {
  const Block block;
  const auto pieces = Pieces::of<T>(field.rows, field.columns);
  const T* from = places.field[(sweep - 1) % 2];
  T* to = places.field[sweep % 2];
  Sum sum;
  const std::uint32_t count = count_of(pieces, part), step = shmem::block_count() * block.size();
  for (std::uint32_t i = block.thread_rank() + shmem::block_index() * block.size(); i < count; i += step) {
    const PiecePlace place = place_of(pieces, part, i);
    const std::uint32_t row = place.row * rows_together, column = place.column * vector_of<T>;
    Vector<T> line[rows_together + 2]{};
    sweep_piece<residual, Kept::nothing>(field, from, to, row, least(rows_together, field.rows - row), column,
                                         least(vector_of<T>, field.columns - column), line, sum);
  }
  if constexpr (residual) {
    // Number 0 is exchange's; an inner part and the edge are swept at once.
    shmem::Context context(handle, 1 + (part == Part::edge ? most_blocks : 0) + shmem::block_index());
    report(context, places.sums + 2 * (number_of(places, sweep) / every - 1), sum);
  }
}

// What follows the sweep and the copies of rows in stream order, by one block: columns to the neighbours, their
// signals, and the neighbours' own. `replays`: the sweeps of a graph that ends here, else 0.
template <typename T>
IMBREX_KERNEL IMBREX_JACOBI_BOUNDS(exchange_threads, 1)
    exchange(shmem::Handle handle, Field field, Places<T> places, std::uint64_t sweep, std::uint64_t replays) {
  shmem::Context context(handle);
  const Block block;
  const std::uint64_t number = number_of(places, sweep);
  T* made = places.field[sweep % 2];
  const std::uint32_t last = field.columns - 1;
  if (field.has_neighbour(context.pe(), west))
    context.iput(made + field.at(0, last + 1), made + field.at(0, 0), field.pitch, field.pitch, field.rows,
                 field.neighbour(context.pe(), west), block);
  if (field.has_neighbour(context.pe(), east))
    context.iput(made + field.at(0, -1), made + field.at(0, last), field.pitch, field.pitch, field.rows,
                 field.neighbour(context.pe(), east), block);
  context.fence(block);
  int absent[sides];
  for (std::uint32_t side = 0; side < sides; ++side) {
    absent[side] = field.has_neighbour(context.pe(), side) ? 0 : 1;
    if (absent[side] == 0 && shmem::is_leader(block))
      context.signal_set(places.signals + opposite(side), number, field.neighbour(context.pe(), side));
  }
  if (!context.wait_until_all(places.signals, sides, absent, shmem::Compare::greater_equal, number, block)) return;
  if (replays != 0 && shmem::is_leader(block)) *places.replayed += replays;
}

/// What blocks reach other PEs by, besides loads and stores: rings of their own, and one for all.
template <bool by_ring>
struct Far {
  explicit IMBREX_DEVICE Far(const shmem::Handle&) {}
};
template <>
struct Far<true> {
  shmem::Context<shmem::OwnRing> own;
  shmem::Context<shmem::Ring> common;
  explicit IMBREX_DEVICE Far(const shmem::Handle& handle) : own(handle), common(handle, shmem::block_count()) {}
};
IMBREX_DEVICE shmem::Context<>& far_or_near(Far<false>&, shmem::Context<>& near) { return near; }
IMBREX_DEVICE shmem::Context<shmem::OwnRing>& far_or_near(Far<true>& far, shmem::Context<>&) { return far.own; }

/// By a block of `bands`, behind a sweep: tells all neighbours of it, and waits until they have done it.
template <typename T>
IMBREX_JACOBI_CALL bool exchange_by_ring(shmem::Context<>& context, Far<true>& far, const Field& field,
                                         const Places<T>& places, std::uint32_t band, std::uint32_t begin,
                                         std::uint32_t rows, const int (&absent)[sides],
                                         const std::uint32_t (&other_pe)[sides],
                                         const std::uint32_t (&other_band)[sides], std::uint64_t sweep) {
  const Block block;
  const std::uint32_t parity = sweep % 2, pe = context.pe();
  T* to = places.field[parity];
  for (std::uint32_t side = west; side <= east; ++side)
    if (absent[side] == 0)
      for (std::uint32_t i = block.thread_rank(); i < rows; i += block.size())
        places.leaving[parity][side - west][begin + i] = to[field.at(begin + i, side == west ? 0 : field.columns - 1)];
  block.sync();
  if (shmem::is_leader(block)) {
    // The first and the last band's rows, and by the last block to come, columns.
    for (std::uint32_t side = 0; side < sides; ++side)
      if (absent[side] == 0 && side < west && other_pe[side] != pe)
        far.own.transport().put_registered(context.handle(), places.puts + side * 2 + parity, sweep, other_pe[side]);
    context.fence();
    for (std::uint32_t side = 0; side < sides; ++side) {
      if (absent[side] != 0) continue;
      if (side >= west) {
        // A block may be a sweep ahead of another, and no more: the next but one needs a whole column of the next.
        const std::uint64_t before =
            shmem::words::fetch_add(places.arrived + parity * 2 + (side - west), std::uint64_t{1});
        if (before + 1 == (sweep + parity) / 2 * shmem::block_count())
          far.common.transport().put_registered(context.handle(), places.puts + side * 2 + parity, sweep,
                                                other_pe[side]);
      } else if (other_pe[side] == pe) {
        context.signal_set(places.signals + std::uint64_t{other_band[side]} * sides + opposite(side), sweep, pe);
      }
    }
  }
  // Columns have one signal for all blocks of a PE.
  if (!context.wait_until_all(places.signals + std::uint64_t{band} * sides, west, absent, shmem::Compare::greater_equal,
                              sweep, block) ||
      !context.wait_until_all(places.signals + west, sides - west, absent + west, shmem::Compare::greater_equal, sweep,
                              block))
    return false;
  for (std::uint32_t side = west; side <= east; ++side)
    if (absent[side] == 0)
      for (std::uint32_t i = block.thread_rank(); i < rows; i += block.size())
        to[field.at(begin + i, side == west ? -1 : std::int64_t{field.columns})] =
            places.landed[parity][side - west][begin + i];
  block.sync();
  return true;
}

// All sweeps in one kernel: each block has a band of rows, and waits for the blocks that border on it, on this PE and
// on others, and for no others. A sweep goes down, the next one up, so that it begins with what caches still hold.
//
// By rings: a row or a column to another PE is one descriptor of a put that the host registered, with the sweep as its
// signal. Columns lie apart, and the last block of a PE that has its part of one posts all of it. Blocks of one PE tell
// each other by stores, as without rings.
template <bool by_ring, typename T>
IMBREX_KERNEL IMBREX_JACOBI_BOUNDS(band_threads, 2)
    bands(shmem::Handle handle, Field field, Places<T> places, std::uint64_t sweeps, std::uint64_t every) {
  shmem::Context context(handle);
  Far<by_ring> far(handle);
  const Block block;
  const std::uint32_t band = shmem::block_index(), count = shmem::block_count(), pe = context.pe();
  const auto bound = [&](std::uint64_t b) { return static_cast<std::uint32_t>(b * field.rows / count); };
  const std::uint32_t begin = bound(band), rows = bound(std::uint64_t{band} + 1) - begin;
  const auto pieces = Pieces::of<T>(rows, field.columns);
  const std::uint32_t parts = block.size() > pieces.across ? least(block.size() / pieces.across, pieces.down) : 1;
  const std::uint32_t part_pieces = (pieces.down + parts - 1) / parts;
  Signal* signals = places.signals + std::uint64_t{band} * sides;

  // Whom this block signals, and is signalled by.
  int absent[sides];
  std::uint32_t other_pe[sides], other_band[sides];
  for (std::uint32_t side = 0; side < sides; ++side) {
    const bool here = (side == north && band > 0) || (side == south && band + 1 < count);
    absent[side] = here || field.has_neighbour(pe, side) ? 0 : 1;
    other_pe[side] = here || absent[side] != 0 ? pe : field.neighbour(pe, side);
    other_band[side] = side == north ? (here ? band - 1 : count - 1) : side == south ? (here ? band + 1 : 0) : band;
  }

  for (std::uint64_t sweep = 1; sweep <= sweeps; ++sweep) {
    const T* from = places.field[(sweep - 1) % 2];
    T* to = places.field[sweep % 2];
    Sum sum;
    // A thread walks down or up a column of pieces, or where there are more threads than columns a part of one.
    const auto walk = [&]<bool residual, bool down>() {
      for (std::uint32_t i = block.thread_rank(); i < pieces.across * parts; i += block.size()) {
        const std::uint32_t column = i % pieces.across * vector_of<T>, part = i / pieces.across * part_pieces;
        const std::uint32_t pieces_here = part < pieces.down ? least(part_pieces, pieces.down - part) : 0;
        Vector<T> line[rows_together + 2]{};
        for (std::uint32_t k = 0; k < pieces_here; ++k) {
          const std::uint32_t row = (part + (down ? k : pieces_here - 1 - k)) * rows_together;
          const auto sweep_one = [&]<Kept kept>() {
            sweep_piece<residual, kept>(field, from, to, begin + row, least(rows_together, rows - row), column,
                                        least(vector_of<T>, field.columns - column), line, sum);
          };
          if (k == 0)
            sweep_one.template operator()<Kept::nothing>();
          else
            sweep_one.template operator()<down ? Kept::above : Kept::below>();
        }
      }
    };
    const auto all = [&]<bool residual>() {
      if (sweep % 2 == 1)
        walk.template operator()<residual, true>();
      else
        walk.template operator()<residual, false>();
    };
    const bool told = sweep % every == 0;
    if (told)
      all.template operator()<true>();
    else
      all.template operator()<false>();
    if (told) report(far_or_near(far, context), places.sums + 2 * (sweep / every - 1), sum);
    if (sweep == sweeps) return;

    block.sync();
    if constexpr (by_ring) {
      if (!exchange_by_ring(context, far, field, places, band, begin, rows, absent, other_pe, other_band, sweep))
        return;
    } else {
      for (std::uint32_t side = 0; side < sides; ++side) {
        if (other_pe[side] == pe) continue;
        const std::int64_t last = static_cast<std::int64_t>(side < west ? field.rows : field.columns) - 1;
        const bool low = side == north || side == west;  // what lies first here is behind the last there
        const std::int64_t mine = low ? 0 : last, theirs = low ? last + 1 : -1;
        if (side < west)
          context.put_nbi(to + field.at(theirs, 0), to + field.at(mine, 0), field.columns, other_pe[side], block);
        else
          context.iput(to + field.at(begin, theirs), to + field.at(begin, mine), field.pitch, field.pitch, rows,
                       other_pe[side], block);
      }
      block.sync();
      if (shmem::is_leader(block)) {
        context.fence();
        for (std::uint32_t side = 0; side < sides; ++side)
          if (absent[side] == 0)
            context.signal_set(places.signals + std::uint64_t{other_band[side]} * sides + opposite(side), sweep,
                               other_pe[side]);
      }
      if (!context.wait_until_all(signals, sides, absent, shmem::Compare::greater_equal, sweep, block)) return;
    }
  }
}

}  // namespace
}  // namespace imbrex::apps::jacobi
