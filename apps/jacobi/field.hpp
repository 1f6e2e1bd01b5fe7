// A field that PEs share as a grid: where its elements lie, who borders on whom, and what they are at first. Host and
// kernels alike.
#pragma once

#include <cstdint>

#include "imbrex/device/shmem.cuh"

namespace imbrex::apps::jacobi {

enum Side : std::uint32_t { north, south, west, east };
inline constexpr std::uint32_t sides = 4;

IMBREX_DEVICE constexpr std::uint32_t opposite(std::uint32_t side) { return side ^ 1u; }

/// Elements of one load or store, and rows that a thread takes together.
template <typename T>
inline constexpr std::uint32_t vector_of = 16 / sizeof(T);
inline constexpr std::uint32_t rows_together = 4;

/// Each PE has `rows` x `columns`, and around them a ring of its neighbours' elements or of the boundary. PE p is in
/// row p / grid_columns of the grid, column p % grid_columns.
struct Field {
  std::uint32_t rows, columns, grid_rows, grid_columns;
  std::uint32_t pitch;  ///< elements from one row to the next
  std::uint32_t lead;   ///< elements before the first of a row: 128 bytes
  std::uint64_t seed;

  /// Place in memory; -1, rows and columns are the ring.
  IMBREX_DEVICE std::int64_t at(std::int64_t row, std::int64_t column) const {
    return (row + 1) * pitch + lead + column;
  }

  /// Loads of whole vectors and rows_together rows stay inside.
  std::uint64_t elements() const { return (std::uint64_t{rows} + 2 + rows_together) * pitch; }

  IMBREX_DEVICE bool has_neighbour(std::uint32_t pe, std::uint32_t side) const {
    const std::uint32_t row = pe / grid_columns, column = pe % grid_columns;
    if (side == north) return row > 0;
    if (side == south) return row + 1 < grid_rows;
    return side == west ? column > 0 : column + 1 < grid_columns;
  }
  IMBREX_DEVICE std::uint32_t neighbour(std::uint32_t pe, std::uint32_t side) const {
    if (side == north) return pe - grid_columns;
    if (side == south) return pe + grid_columns;
    return side == west ? pe - 1 : pe + 1;
  }
};

/// How a PE is cut into tiles, and tiles into patches. The last tiles of a row or column may be smaller.
struct Tiling {
  std::uint32_t down = 0, across = 0;                  ///< tiles
  std::uint32_t rows = 0, columns = 0;                 ///< of a tile, without its ring
  std::uint32_t patch_rows = 0, patch_columns = 0;     ///< of a thread's patch
  std::uint32_t patches_down = 0, patches_across = 0;  ///< of a tile with its ring
  std::uint32_t box = 0;                               ///< packets of one

  IMBREX_DEVICE std::uint32_t threads() const { return patches_down * patches_across; }
};

template <typename T>
constexpr Field field_of(std::uint32_t rows, std::uint32_t columns, std::uint32_t grid_rows, std::uint32_t grid_columns,
                         std::uint64_t seed) {
  constexpr std::uint32_t line = 128 / sizeof(T);
  return {rows, columns, grid_rows, grid_columns, line + (columns + 1 + line - 1) / line * line, line, seed};
}

/// Element (row, column) of the whole at first; the boundary, which stays, is at -1 and behind the last. A multiple of
/// 2^-24 from 1/4 to 1: means of four such never leave that range, so a quarter of a sum is exact, whether or not a
/// compiler merges it with what follows, and a difference is a multiple of 2^-26 (fp32) or 2^-55 (fp64).
template <typename T>
IMBREX_DEVICE T first_value(std::uint64_t seed, std::int64_t row, std::int64_t column) {
  std::uint64_t x = seed * 0x9e3779b97f4a7c15u ^ static_cast<std::uint64_t>(row + 1) * 0xbf58476d1ce4e5b9u ^
                    static_cast<std::uint64_t>(column + 1) * 0x94d049bb133111ebu;
  x ^= x >> 30, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 27, x *= 0x94d049bb133111ebu, x ^= x >> 31;
  const std::uint32_t quarter = 1u << 22;
  return static_cast<T>(quarter + 3u * (static_cast<std::uint32_t>(x) % quarter)) * static_cast<T>(0x1p-24);
}

}  // namespace imbrex::apps::jacobi
