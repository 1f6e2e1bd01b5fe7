// A tile's accumulators, as wgmma leaves them in the registers of one or two warpgroups, and how they get to regions.
//
// Register r of thread t of a warpgroup (PTX ISA, wgmma D fragment of m64nNk16) holds, within 64 rows,
//   row 16 * (t / 32) + t % 32 / 4 + 8 * (r / 2 % 2),  column 8 * (r / 4) + 2 * (t % 4) + r % 2,  r < N / 2;
// a warpgroup with several 64-row parts has them one after another.
#pragma once

#include "execute/cuda/element.cuh"

namespace imbrex::cuda {

/// Narrow: the 16-bit type that regions hold unless they hold fp32.
template <Type Narrow, int TileN, int Registers, int Threads>
struct Fragment {
  static constexpr int per_part = TileN / 2, parts = Registers / per_part;
  static_assert(Registers % per_part == 0 && TileN % 32 == 0);

  /// First row of the thread's warpgroup; thread counts through the `Threads` of the tile.
  __device__ __forceinline__ static std::uint32_t base_row(std::uint32_t thread) {
    return thread / 128 * (64 * parts) + thread % 128 / 32 * 16 + thread % 32 / 4;
  }

  /// To a slot in register order: thread t's i-th 16 bytes at (i * Threads + t) * 16, so that warps store whole lines.
  __device__ __forceinline__ static void store_slot(const float (&acc)[Registers], const RegionEntry& r,
                                                    std::byte* first, std::uint32_t thread) {
    auto* to = reinterpret_cast<uint4*>(first) + thread;
    if (r.type == Type::fp32) {
#pragma unroll
      for (int i = 0; i < Registers / 4; ++i)
        to[i * Threads] = {__float_as_uint(acc[4 * i]), __float_as_uint(acc[4 * i + 1]),
                           __float_as_uint(acc[4 * i + 2]), __float_as_uint(acc[4 * i + 3])};
      return;
    }
#pragma unroll
    for (int i = 0; i < Registers / 8; ++i) {
      const float* v = acc + 8 * i;
      to[i * Threads] = {pack(Narrow, v[0], v[1]), pack(Narrow, v[2], v[3]), pack(Narrow, v[4], v[5]),
                         pack(Narrow, v[6], v[7])};
    }
  }

  /// To rows: the four threads of a quad swap words, so that each stores 16 bytes of one row.
  __device__ __forceinline__ static void store_rows(const float (&acc)[Registers], const RegionEntry& r,
                                                    std::byte* first, std::uint32_t thread) {
    const std::uint32_t quad = thread % 4, row0 = base_row(thread);
    const bool aligned = wide(r, first) && r.col % 8 == 0;
    const std::uint32_t size = r.type == Type::fp32 ? 4 : 2;
#pragma unroll
    for (int part = 0; part < parts; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t row = row0 + 64 * part + 8 * half - r.row;
        const bool row_in = row < r.rows;  // also false where the subtraction wrapped
        std::byte* line = first + static_cast<std::uint64_t>(row) * r.pitch;
#pragma unroll
        for (int group = 0; group < TileN / 32; ++group) {
          const float* v = acc + part * per_part + group * 16 + half * 2;  // of block b: v[4 * b], v[4 * b + 1]
          if (!aligned) {
#pragma unroll
            for (int b = 0; b < 4; ++b)
#pragma unroll
              for (int c = 0; c < 2; ++c) {
                const std::uint32_t col = group * 32 + b * 8 + quad * 2 + c - r.col;
                if (row_in && col < r.cols)
                  store_element(size == 4 ? Type::fp32 : Narrow, line + col * size, v[4 * b + c]);
              }
            continue;
          }
          std::uint32_t w[4];
#pragma unroll
          for (int b = 0; b < 4; ++b) w[b] = pack(Narrow, v[4 * b], v[4 * b + 1]);
          transpose(w, quad);
          const std::uint32_t col = group * 32 + quad * 8 - r.col;
          if (!row_in || col >= r.cols) continue;
          if (col + 8 <= r.cols) {
            *reinterpret_cast<uint4*>(line + col * 2) = {w[0], w[1], w[2], w[3]};
          } else {
#pragma unroll
            for (std::uint32_t i = 0; i < 8; ++i)
              if (col + i < r.cols)
                *reinterpret_cast<unsigned short*>(line + (col + i) * 2) =
                    static_cast<unsigned short>(w[i / 2] >> (i % 2 * 16));
          }
        }
      }
  }

  /// acc = adds[0] + ... + adds[own-1] + acc + adds[own] + ..., all slots in register order, 16 bit wide.
  template <int Adds>
  __device__ __forceinline__ static void add_slots(float (&acc)[Registers], const uint4* const (&from)[Adds], int own) {
    constexpr int batch = Registers / 8 % 4 == 0 ? 4 : 2;  // loads in flight: batch * Adds
#pragma unroll
    for (int i = 0; i < Registers / 8; i += batch) {
      uint4 bits[Adds][batch];
      int place;
      asm volatile("mov.u32 %0, %1;" : "=r"(place) : "r"(own));  // opaque, batch by batch
#pragma unroll
      for (int s = 0; s < Adds; ++s)
#pragma unroll
        for (int j = 0; j < batch; ++j) bits[s][j] = load_slot(from[s] + (i + j) * Threads);
#pragma unroll
      for (int j = 0; j < batch; ++j) {
        float sum[8] = {};
#pragma unroll
        for (int s = 0; s <= Adds; ++s) {
          // NOTE: zero added instead of a branch: branches on `own` make the compiler keep a copy of all registers a
          // case.
#pragma unroll
          for (int e = 0; e < 8; ++e) sum[e] += s == place ? acc[8 * (i + j) + e] : 0.0f;
          if (s == Adds) break;
          add_eight(Narrow, bits[s][j], sum);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) acc[8 * (i + j) + e] = sum[e];
      }
    }
  }

  /// The same for any number and type of slots, eight registers at a time.
  __device__ __forceinline__ static void add_any(float (&acc)[Registers], const TaskEntry& task,
                                                 const RegionEntry* adds, std::uint32_t copy, std::uint32_t thread) {
#pragma unroll
    for (int i = 0; i < Registers / 8; ++i) {
      float sum[8] = {};
#pragma unroll 1
      for (std::uint32_t s = 0; s <= task.adds; ++s) {
        if (s == task.own) {
#pragma unroll
          for (int e = 0; e < 8; ++e) sum[e] += acc[8 * i + e];
        }
        if (s == task.adds) break;
        const RegionEntry& r = adds[s];
        const auto* first = reinterpret_cast<const uint4*>(first_of(r, nullptr, copy)) + thread;
        if (r.type == Type::fp32) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            const uint4 bits = load_slot(first + (2 * i + h) * Threads);
            sum[4 * h] += __uint_as_float(bits.x);
            sum[4 * h + 1] += __uint_as_float(bits.y);
            sum[4 * h + 2] += __uint_as_float(bits.z);
            sum[4 * h + 3] += __uint_as_float(bits.w);
          }
        } else {
          add_eight(Narrow, load_slot(first + i * Threads), sum);
        }
      }
#pragma unroll
      for (int e = 0; e < 8; ++e) acc[8 * i + e] = sum[e];
    }
  }

  __device__ __forceinline__ static void add(float (&acc)[Registers], const TaskEntry& task, const RegionEntry* adds,
                                             std::uint32_t copy, std::uint32_t thread) {
    const bool slots = adds[0].type == Narrow;  // a tile's slots lie in one buffer
    const auto slot = [&](int s) { return reinterpret_cast<const uint4*>(first_of(adds[s], nullptr, copy)) + thread; };
    if (slots && task.adds == 3) {
      const uint4* const from[3] = {slot(0), slot(1), slot(2)};
      add_slots<3>(acc, from, task.own);
    } else if (slots && task.adds == 1) {
      const uint4* const from[1] = {slot(0)};
      add_slots<1>(acc, from, task.own);
    } else {
      add_any(acc, task, adds, copy, thread);
    }
  }

  __device__ __forceinline__ static void store(const float (&acc)[Registers], const RegionEntry& r, void* out,
                                               std::uint32_t copy, std::uint32_t thread) {
    std::byte* first = first_of(r, out, copy);
    if (r.order == SlotOrder::registers)
      store_slot(acc, r, first, thread);
    else
      store_rows(acc, r, first, thread);
  }

 private:
  /// Volatile, so that the compiler keeps the batches apart: all loads at once would not fit the registers.
  __device__ __forceinline__ static uint4 load_slot(const uint4* address) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
  }

  /// A 4 x 4 transpose of words within a quad: word b of thread q becomes word q of thread b.
  __device__ __forceinline__ static void transpose(std::uint32_t (&w)[4], std::uint32_t quad) {
#pragma unroll
    for (int bit = 1; bit <= 2; bit *= 2) {
      const bool upper = (quad & bit) != 0;
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        if (x & bit) continue;
        const int y = x | bit;
        const std::uint32_t received = __shfl_xor_sync(0xffffffffu, upper ? w[x] : w[y], bit);
        if (upper)
          w[x] = received;
        else
          w[y] = received;
      }
    }
  }
};

}  // namespace imbrex::cuda
