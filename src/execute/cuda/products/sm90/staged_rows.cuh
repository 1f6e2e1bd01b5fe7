// A tile's way from registers to rows of memory, through shared memory: the fragments of wgmma hold rows in pieces of
// four bytes, and shuffles that put them together take a warp longer than this.
#pragma once

#include "execute/cuda/products/element.cuh"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {

/// Each warp has a stage of its own, for 16 rows of a chunk of the tile's columns. All is called by whole warps.
// NOTE: bulk copies out of the stage, a row each, take long to issue: tiles of 128 x 256 gained 3 % of their cycles
// instead of 8. Tiles of 128 x 128 gained 4 % instead of 2, as another one is multiplied meanwhile; but copies to a
// peer hold up the loads of operands queued after them: an all-to-all of 1024 x 4096 x 3584 a rank took 58 us instead
// of 51.
template <Type Narrow, typename Tile>
struct StagedRows {
  static constexpr int chunk = Tile::columns > 128 ? Tile::columns / 2 : Tile::columns;
  static constexpr int pitch = chunk * 2 + 16;  ///< the 16 bytes spread eight rows over all banks
  static constexpr int bytes = 16 * pitch;      ///< of a warp
  static_assert(chunk % 16 == 0 && Tile::columns % chunk == 0);

  /// Stores the tile to the first `stores` of the task's regions, whose rows are wide (TaskEntry::wide_stores).
  /// `others`: after the first. The pace counts 16 bytes a thread.
  template <int Registers>
  __device__ __forceinline__ static void store(const float (&acc)[Registers], const TaskEntry& task,
                                               const RegionEntry* others, std::uint32_t stores, void* out,
                                               std::uint32_t copy, std::uint32_t thread, std::byte* stage, Pace& pace) {
    const std::uint32_t lane = thread % 32, shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(stage));
    // A warp stages four 8 x 8 parts at once: lane l names row l % 8 of part l / 8.
    const std::uint32_t place = shared + lane % 16 * pitch + lane / 16 * 16;
#pragma unroll
    for (int part = 0; part < Tile::parts; ++part)
#pragma unroll
      for (int c = 0; c < Tile::columns; c += chunk) {
        __syncwarp();  // the stage has been read
#pragma unroll
        for (int b = 0; b < chunk / 16; ++b) {
          const float* v = acc + part * Tile::per_part + (c + 16 * b) / 2;
          const uint4 w = Elements<Narrow>::packed(v);
          asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(place + 32 * b),
                       "r"(w.x), "r"(w.y), "r"(w.z), "r"(w.w)
                       : "memory");
        }
        __syncwarp();
        for (std::uint32_t s = 0; s < stores; ++s) {
          const RegionEntry& r = store_of(task, others, s);
          send(r, first_of(r, out, copy), Tile::row_of(thread - lane) + Tile::part_rows * part - r.row, c - r.col, lane,
               shared, pace);
        }
      }
  }

 private:
  /// A chunk, whose first element is the region's (row, col), both of which wrap where it begins before the region.
  __device__ __forceinline__ static void send(const RegionEntry& r, std::byte* first, std::uint32_t row,
                                              std::uint32_t col, std::uint32_t lane, std::uint32_t shared, Pace& pace) {
    constexpr std::uint32_t pieces = chunk / 8;  // of 16 bytes, in a row
    const std::uint64_t line = r.pitch;
    const std::uint32_t rows = r.rows, cols = r.cols;
#pragma unroll 4
    for (std::uint32_t p = lane; p < 16 * pieces; p += 32) {
      const std::uint32_t y = p / pieces, x = p % pieces;
      const uint4 v = load_shared(shared + y * pitch + x * 16);
      if (row + y < rows && col + x * 8 < cols)
        *reinterpret_cast<uint4*>(first + (row + y) * line + (col + x * 8) * 2) = v;
      pace.wait();
    }
  }
};

}  // namespace imbrex::cuda
