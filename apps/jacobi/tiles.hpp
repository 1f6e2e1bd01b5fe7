// Jacobi in one kernel whose field stays in registers: each block holds a tile of the PE with the ring around it, each
// thread a patch of the tile. What borders on another tile travels as packets, 8 bytes of elements and the number of
// their sweep, which need no fence. A block waits for its neighbours' packets, and for nothing else.
//
// Memory. A tile's ring has a box of packets for each side and each parity of the sweep. A block sends those of sweep
// s + 2 when it has all of its neighbours' of s + 1, which they sent when they had read all of sweep s: no box is
// written before it has been read.
//
// A block's threads go through phases, between which they meet: on the CPU, where a block is one thread, each phase is
// a loop over all of them.
#pragma once

#include "apps/jacobi/kernels.hpp"

#if !defined(__CUDA_ARCH__)
#include <vector>
#endif

namespace imbrex::apps::jacobi {
namespace {

// A block of so many threads may have 128 registers a thread: a large patch of floats and what it takes. 33
// SMs hold 512 x 512 elements, with the tiles' rings, in small patches, and 1024 x 1024 in large ones.
constexpr std::uint32_t tile_threads = 512;
constexpr std::uint32_t small_rows = 5, small_columns = 4, large_rows = 9, large_columns = 8;

/// Elements that a thread publishes to its neighbours.
template <std::uint32_t R, std::uint32_t C>
inline constexpr std::uint32_t edge_of = 2 * (R + C);

template <typename T, std::uint32_t R, std::uint32_t C>
inline constexpr std::uint32_t shared_count = (2 * tile_threads) * edge_of<R, C>;

template <typename T, std::uint32_t R, std::uint32_t C>
struct Patch {
  T u[R][C];
};

// The tile on a side, if there is one.
struct Beside {
  std::uint32_t block, pe;
  bool exists;
};

// One tile's part in the work, as a block sees it.
template <typename T, std::uint32_t R, std::uint32_t C>
struct Tile {
  const Field& field;
  const Places<T>& places;
  const Tiling& tiling;
  std::uint32_t block, pe;
  std::uint32_t first_row, first_column;  // of the PE
  std::uint32_t rows, columns;            // its own
  T* edges;                               // shared: [parity][edge_of][tile_threads]
  Beside* beside;                         // shared: [sides]

  IMBREX_DEVICE T* edge(std::uint64_t sweep, std::uint32_t which, std::uint32_t thread) const {
    return edges + ((sweep % 2) * edge_of<R, C> + which) * tile_threads + thread;
  }

  // Row and column of a thread's first element; (0, 0) is the ring's corner.
  IMBREX_DEVICE std::uint32_t row_of(std::uint32_t thread) const { return thread / tiling.patches_across * R; }
  IMBREX_DEVICE std::uint32_t column_of(std::uint32_t thread) const { return thread % tiling.patches_across * C; }

  IMBREX_DEVICE Beside find_beside(std::uint32_t side) const {
    const std::uint32_t y = block / tiling.across, x = block % tiling.across;
    if (side == north && y > 0) return {block - tiling.across, pe, true};
    if (side == south && y + 1 < tiling.down) return {block + tiling.across, pe, true};
    if (side == west && x > 0) return {block - 1, pe, true};
    if (side == east && x + 1 < tiling.across) return {block + 1, pe, true};
    if (!field.has_neighbour(pe, side)) return {0, pe, false};
    const std::uint32_t there = field.neighbour(pe, side);
    if (side < west) return {(side == north ? tiling.down - 1 : 0) * tiling.across + x, there, true};
    return {y * tiling.across + (side == west ? tiling.across - 1 : 0), there, true};
  }

  IMBREX_DEVICE EdgePacket* box(std::uint32_t of_block, std::uint32_t side, std::uint64_t sweep) const {
    return places.packets + ((std::uint64_t{of_block} * sides + side) * 2 + sweep % 2) * tiling.box;
  }

  IMBREX_DEVICE void load(std::uint32_t thread, Patch<T, R, C>& patch) const {
    const std::uint32_t row = row_of(thread), column = column_of(thread);
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t i = 0; i < R; ++i) IMBREX_JACOBI_UNROLL
    for (std::uint32_t j = 0; j < C; ++j) {
      const bool is_in = row + i <= rows + 1 && column + j <= columns + 1;
      patch.u[i][j] = is_in ? at_first(row + i, column + j) : T{0};
    }
  }

  IMBREX_DEVICE void store(std::uint32_t thread, const Patch<T, R, C>& patch, T* to) const {
    const std::uint32_t row = row_of(thread), column = column_of(thread);
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t i = 0; i < R; ++i) IMBREX_JACOBI_UNROLL
    for (std::uint32_t j = 0; j < C; ++j)
      if (is_own(row + i, rows) && is_own(column + j, columns))
        to[field.at(first_row + row + i - 1, first_column + column + j - 1)] = patch.u[i][j];
  }

  static IMBREX_DEVICE bool is_own(std::uint32_t place, std::uint32_t extent) { return place - 1 < extent; }

  static constexpr std::uint32_t per_packet = 8 / sizeof(T);
  template <std::uint32_t N>
  static constexpr std::uint32_t packets_of = (N + per_packet - 1) / per_packet;

  // Whether a packet of elements from `place` on has any of the tile.
  static IMBREX_DEVICE bool is_sent(std::uint32_t place, std::uint32_t extent) {
    return is_own(place, extent) || (per_packet > 1 && is_own(place + 1, extent));
  }

  // What threads beside this one need. A thread's values lie tile_threads apart, so that a warp's lie
  // side by side.
  IMBREX_DEVICE void publish(std::uint64_t sweep, std::uint32_t thread, const Patch<T, R, C>& patch) const {
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t j = 0; j < C; ++j) {
      *edge(sweep, j, thread) = patch.u[0][j];
      *edge(sweep, C + j, thread) = patch.u[R - 1][j];
    }
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t i = 0; i < R; ++i) {
      *edge(sweep, 2 * C + i, thread) = patch.u[i][0];
      *edge(sweep, 2 * C + R + i, thread) = patch.u[i][C - 1];
    }
  }

  // The sweep, in place, over all elements of the patch: the ring's are put right by receive, and no thread reads what
  // lies beyond it.
  template <bool residual>
  IMBREX_DEVICE void compute(std::uint64_t sweep, std::uint32_t thread, Patch<T, R, C>& patch, Sum& sum) const {
    [[maybe_unused]] const std::uint32_t row = row_of(thread), column = column_of(thread);
    const std::uint32_t wide = tiling.patches_across;
    const std::uint32_t above_it = thread >= wide ? thread - wide : thread;
    const std::uint32_t below_it = thread + wide < tiling.threads() ? thread + wide : thread;
    const std::uint32_t left_of_it = thread > 0 ? thread - 1 : thread;
    const std::uint32_t right_of_it = thread + 1 < tiling.threads() ? thread + 1 : thread;
    T above[C];
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t j = 0; j < C; ++j) above[j] = *edge(sweep, C + j, above_it);
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t i = 0; i < R; ++i) {
      const T left = *edge(sweep, 2 * C + R + i, left_of_it), right = *edge(sweep, 2 * C + i, right_of_it);
      T old[C];
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t j = 0; j < C; ++j) old[j] = patch.u[i][j];
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t j = 0; j < C; ++j) {
        T below;
        if (i + 1 < R)
          below = patch.u[i + 1 < R ? i + 1 : i][j];
        else
          below = *edge(sweep, j, below_it);
        const T made = mean(above[j], below, j > 0 ? old[j > 0 ? j - 1 : 0] : left,
                            j + 1 < C ? old[j + 1 < C ? j + 1 : j] : right);
        if constexpr (residual) {
          const bool own = is_own(row + i, rows) && is_own(column + j, columns);
          sum.add(own ? made - old[j] : T{0});
        }
        patch.u[i][j] = made;
      }
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t j = 0; j < C; ++j) above[j] = old[j];
    }
  }

  // Row `at` of a patch, or column `at`, as a line; `along`: the first element's place along the side.
  template <std::uint32_t N, typename Context>
  IMBREX_DEVICE void send_line(Context& context, std::uint32_t side, std::uint64_t sweep, std::uint32_t along,
                               std::uint32_t extent, std::uint32_t patches, const T (&line)[N]) const {
    const Beside& other = beside[side];
    EdgePacket* to = box(other.block, opposite(side), sweep) + along / N;
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t p = 0; p < packets_of<N>; ++p) {
      if (!is_sent(along + p * per_packet, extent)) continue;
      std::uint64_t bits = 0;
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t k = p * per_packet; k < (p + 1) * per_packet && k < N; ++k)
        bits |= std::uint64_t{shmem::words::cast<shmem::words::BitsOf<T>>(line[k])} << (k % per_packet * 32);
      context.put_packet(to + p * patches, bits, sweep, other.pe);
    }
  }

  template <typename Context>
  IMBREX_DEVICE void send(Context& context, std::uint64_t sweep, std::uint32_t thread,
                          const Patch<T, R, C>& patch) const {
    const std::uint32_t row = row_of(thread), column = column_of(thread);
    if (row == 0 && beside[north].exists) send_row(context, north, sweep, column, patch.u[1]);
    if (rows - row < R && beside[south].exists) {
      T line[C];
      take_row(patch, rows - row, line);
      send_row(context, south, sweep, column, line);
    }
    if (column == 0 && beside[west].exists) {
      T line[R];
      take_column(patch, 1, line);
      send_column(context, west, sweep, row, line);
    }
    if (columns - column < C && beside[east].exists) {
      T line[R];
      take_column(patch, columns - column, line);
      send_column(context, east, sweep, row, line);
    }
  }
  template <typename Context>
  IMBREX_DEVICE void send_row(Context& context, std::uint32_t side, std::uint64_t sweep, std::uint32_t column,
                              const T (&line)[C]) const {
    send_line(context, side, sweep, column, columns, tiling.patches_across, line);
  }
  template <typename Context>
  IMBREX_DEVICE void send_column(Context& context, std::uint32_t side, std::uint64_t sweep, std::uint32_t row,
                                 const T (&line)[R]) const {
    send_line(context, side, sweep, row, rows, tiling.patches_down, line);
  }

  // Until all packets of a line are there. The loads of a thread are under way together.
  template <std::uint32_t N, typename Context>
  IMBREX_DEVICE bool receive_line(Context& context, std::uint32_t side, std::uint64_t sweep, std::uint32_t along,
                                  std::uint32_t extent, std::uint32_t patches, T (&line)[N]) const {
    const EdgePacket* from = box(block, side, sweep) + along / N;
    std::uint64_t seen = 0;
    return context.wait(shmem::FaultKind::wait, pe, &from->signal, sweep, seen, [&] {
      shmem::words::Pair pair[packets_of<N>]{};
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t p = 0; p < packets_of<N>; ++p)
        if (is_sent(along + p * per_packet, extent)) pair[p] = shmem::words::load_pair(from + p * patches);
      bool all = true;
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t p = 0; p < packets_of<N>; ++p)
        if (is_sent(along + p * per_packet, extent) && pair[p].second != sweep) all = false, seen = pair[p].second;
      if (!all) return false;
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t k = 0; k < N; ++k)
        if (is_own(along + k, extent))
          line[k] = shmem::words::cast<T>(
              static_cast<shmem::words::BitsOf<T>>(pair[k / per_packet].first >> (k % per_packet * 32)));
      return true;
    });
  }

  // The ring: from neighbours, or the boundary.
  template <typename Context>
  IMBREX_DEVICE bool receive(Context& context, std::uint64_t sweep, std::uint32_t thread, Patch<T, R, C>& patch) const {
    const std::uint32_t row = row_of(thread), column = column_of(thread);
    if (row == 0) {
      T line[C]{};
      if (!receive_row(context, north, sweep, 0, column, line)) return false;
      put_row(line, 0, patch);
    }
    if (rows + 1 - row < R) {
      T line[C]{};
      if (!receive_row(context, south, sweep, rows + 1, column, line)) return false;
      put_row(line, rows + 1 - row, patch);
    }
    if (column == 0) {
      T line[R]{};
      if (!receive_column(context, west, sweep, 0, row, line)) return false;
      put_column(line, 0, patch);
    }
    if (columns + 1 - column < C) {
      T line[R]{};
      if (!receive_column(context, east, sweep, columns + 1, row, line)) return false;
      put_column(line, columns + 1 - column, patch);
    }
    return true;
  }
  template <typename Context>
  IMBREX_DEVICE bool receive_row(Context& context, std::uint32_t side, std::uint64_t sweep, std::uint32_t row,
                                 std::uint32_t column, T (&line)[C]) const {
    if (beside[side].exists) return receive_line(context, side, sweep, column, columns, tiling.patches_across, line);
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t j = 0; j < C; ++j)
      if (is_own(column + j, columns)) line[j] = at_first(row, column + j);
    return true;
  }
  template <typename Context>
  IMBREX_DEVICE bool receive_column(Context& context, std::uint32_t side, std::uint64_t sweep, std::uint32_t column,
                                    std::uint32_t row, T (&line)[R]) const {
    if (beside[side].exists) return receive_line(context, side, sweep, row, rows, tiling.patches_down, line);
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t i = 0; i < R; ++i)
      if (is_own(row + i, rows)) line[i] = at_first(row + i, column);
    return true;
  }
  IMBREX_DEVICE T at_first(std::uint32_t row, std::uint32_t column) const {
    return places.field[0][field.at(std::int64_t{first_row} + row - 1, std::int64_t{first_column} + column - 1)];
  }

  // NOTE: by comparisons, as registers have no index.
  static IMBREX_DEVICE void take_row(const Patch<T, R, C>& patch, std::uint32_t at, T (&line)[C]) {
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t j = 0; j < C; ++j) {
      line[j] = patch.u[0][j];
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t i = 1; i < R; ++i)
        if (i == at) line[j] = patch.u[i][j];
    }
  }
  static IMBREX_DEVICE void take_column(const Patch<T, R, C>& patch, std::uint32_t at, T (&line)[R]) {
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t i = 0; i < R; ++i) {
      line[i] = patch.u[i][0];
      IMBREX_JACOBI_UNROLL
      for (std::uint32_t j = 1; j < C; ++j)
        if (j == at) line[i] = patch.u[i][j];
    }
  }
  static IMBREX_DEVICE void put_row(const T (&line)[C], std::uint32_t at, Patch<T, R, C>& patch) {
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t i = 0; i < R; ++i) IMBREX_JACOBI_UNROLL
    for (std::uint32_t j = 0; j < C; ++j)
      if (i == at) patch.u[i][j] = line[j];
  }
  static IMBREX_DEVICE void put_column(const T (&line)[R], std::uint32_t at, Patch<T, R, C>& patch) {
    IMBREX_JACOBI_UNROLL
    for (std::uint32_t i = 0; i < R; ++i) IMBREX_JACOBI_UNROLL
    for (std::uint32_t j = 0; j < C; ++j)
      if (j == at) patch.u[i][j] = line[i];
  }
};

#if defined(__CUDA_ARCH__)
// A phase: what a thread of the block does with its patch.
template <typename P, typename Phase>
__device__ __forceinline__ void each_thread(std::uint32_t threads, P& patch, Phase&& phase) {
  if (threadIdx.x < threads) phase(threadIdx.x, patch);
}
#else
template <typename P, typename Phase>
inline void each_thread(std::uint32_t threads, std::vector<P>& patches, Phase&& phase) {
  for (std::uint32_t thread = 0; thread < threads; ++thread) phase(thread, patches[thread]);
}
#endif

template <typename T, std::uint32_t R, std::uint32_t C>
IMBREX_KERNEL IMBREX_JACOBI_BOUNDS(tile_threads, 1) tiles(shmem::Handle handle, Field field, Places<T> places,
                                                          Tiling tiling, std::uint64_t sweeps, std::uint64_t every) {
  shmem::Context context(handle);
  const Block block;
  const std::uint32_t threads = tiling.threads();
#if defined(__CUDA_ARCH__)
  extern __shared__ __align__(16) unsigned char jacobi_edges[];
  __shared__ Beside beside[sides];
  T* edges = reinterpret_cast<T*>(jacobi_edges);
  Patch<T, R, C> patches;
#else
  std::vector<T> kept(shared_count<T, R, C>);
  Beside beside[sides];
  T* edges = kept.data();
  std::vector<Patch<T, R, C>> patches(threads);
#endif
  const std::uint32_t number = shmem::block_index();
  const std::uint32_t row = number / tiling.across * tiling.rows, column = number % tiling.across * tiling.columns;
  const Tile<T, R, C> tile{field,
                           places,
                           tiling,
                           number,
                           context.pe(),
                           row,
                           column,
                           least(tiling.rows, field.rows - row),
                           least(tiling.columns, field.columns - column),
                           edges,
                           beside};
  using P = Patch<T, R, C>;
  if (shmem::is_leader(block))
    for (std::uint32_t side = 0; side < sides; ++side) beside[side] = tile.find_beside(side);
  each_thread(threads, patches, [&](std::uint32_t thread, P& patch) { tile.load(thread, patch); });
  bool failed = false;
  for (std::uint64_t sweep = 1; sweep <= sweeps; ++sweep) {
    each_thread(threads, patches, [&](std::uint32_t thread, P& patch) { tile.publish(sweep, thread, patch); });
    if (shmem::any_of(block, failed)) return;
    const bool told = sweep % every == 0, last = sweep == sweeps;
    Sum sum;
    each_thread(threads, patches, [&](std::uint32_t thread, P& patch) {
      if (told)
        tile.template compute<true>(sweep, thread, patch, sum);
      else
        tile.template compute<false>(sweep, thread, patch, sum);
      if (!last) tile.send(context, sweep, thread, patch);
    });
    if (told) report(context, places.sums + 2 * (sweep / every - 1), sum);
    if (!last)
      each_thread(threads, patches, [&](std::uint32_t thread, P& patch) {
        if (!failed) failed = !tile.receive(context, sweep, thread, patch);
      });
  }
  T* to = places.field[sweeps % 2];
  each_thread(threads, patches, [&](std::uint32_t thread, P& patch) { tile.store(thread, patch, to); });
}

}  // namespace
}  // namespace imbrex::apps::jacobi
