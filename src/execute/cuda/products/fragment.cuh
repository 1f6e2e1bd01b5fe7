// A tile's accumulators, as wgmma leaves them in the registers of one or two warpgroups, and how they get to regions.
//
// Register r of thread t of a warpgroup (PTX ISA, wgmma D fragment of m64nNk16) holds, within 64 rows,
//   row 16 * (t / 32) + t % 32 / 4 + 8 * (r / 2 % 2),  column 8 * (r / 4) + 2 * (t % 4) + r % 2,  r < N / 2;
// a warpgroup with several 64-row parts has them one after another.
#pragma once

#include "execute/cuda/products/element.cuh"
#include "execute/cuda/protocol.cuh"

namespace imbrex::cuda {

/// The four warps of a warpgroup one below the other, each as wide as the tile.
template <int TileN, int Registers>
struct WarpgroupRows {
  static constexpr int columns = TileN, part_rows = 64, parts = Registers / (columns / 2);
  __device__ __forceinline__ static std::uint32_t row(std::uint32_t thread) {
    return thread / 128 * (64 * parts) + thread % 128 / 32 * 16 + thread % 32 / 4;
  }
  __device__ __forceinline__ static std::uint32_t col(std::uint32_t) { return 0; }
};

/// Narrow: the 16-bit type that regions hold unless they hold fp32. Places: the first row and column of a thread, which
/// counts through the `Threads` of the tile, the columns of a warp, and how far one part lies below another.
template <Type Narrow, int TileN, int Registers, int Threads, typename Places = WarpgroupRows<TileN, Registers>>
struct Fragment {
  static constexpr int columns = Places::columns, per_part = columns / 2, parts = Registers / per_part;
  static constexpr int part_rows = Places::part_rows;
  static constexpr int units = Registers / 8;
  static_assert(Registers % per_part == 0 && columns % 32 == 0);

  /// The first of a warp's rows, and of its first lane's.
  __device__ __forceinline__ static std::uint32_t row_of(std::uint32_t thread) { return Places::row(thread); }

  /// To a slot in register order: thread t's i-th 16 bytes at (i * Threads + t) * 16, so that warps store whole lines.
  __device__ __forceinline__ static void store_slot(const float (&acc)[Registers], const RegionEntry& r,
                                                    std::byte* first, std::uint32_t thread, Pace& pace) {
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
      to[i * Threads] = Elements<Narrow>::packed(v);
      pace.wait();
    }
  }

  /// To rows: the four threads of a quad swap words, so that each holds 16 bytes of one row; two quads of neighbouring
  /// rows swap those again, so that eight threads store 128 bytes of one row at once.
  __device__ __forceinline__ static void store_rows(const float (&acc)[Registers], const RegionEntry& r,
                                                    std::byte* first, std::uint32_t thread, Pace& pace) {
    if (!wide(r, first) || r.col % 8 != 0) return store_elements(acc, r, first, thread);
    const std::uint32_t quad = thread % 4, row0 = Places::row(thread), col0 = Places::col(thread) - r.col;
    const bool odd = row0 % 2 != 0;
    constexpr int groups = columns / 32;  // of 32 columns, 64 bytes
#pragma unroll
    for (int part = 0; part < parts; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t row = row0 + Places::part_rows * part + 8 * half;
        const float* values =
            acc + part * per_part + half * 2;  // of group g and block b: v[16 * g + 4 * b], and the next
#pragma unroll
        for (int g = 0; g + 1 < groups; g += 2) {
          std::uint32_t w[4], x[4];
          gather(values + 16 * g, quad, w);
          gather(values + 16 * (g + 1), quad, x);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const std::uint32_t received = __shfl_xor_sync(0xffffffffu, odd ? w[i] : x[i], 4);
            if (odd)
              w[i] = received;  // now the even row's second group
            else
              x[i] = received;  // now the odd row's first group
          }
          const std::uint32_t col = (g + (odd ? 1 : 0)) * 32 + quad * 8 + col0;
          store_part(r, first, (row & ~1u) - r.row, col, w);
          store_part(r, first, (row | 1u) - r.row, col, x);
          pace.wait();
          pace.wait();
        }
        if constexpr (groups % 2 != 0) {
          std::uint32_t w[4];
          gather(values + 16 * (groups - 1), quad, w);
          store_part(r, first, row - r.row, (groups - 1) * 32 + quad * 8 + col0, w);
        }
      }
  }

  /// Stores a tile whose rows do not lie on 16 bytes, or hold fp32.
  __device__ __forceinline__ static void store_elements(const float (&acc)[Registers], const RegionEntry& r,
                                                        std::byte* first, std::uint32_t thread) {
    const std::uint32_t quad = thread % 4, row0 = Places::row(thread), col0 = Places::col(thread) - r.col;
    const std::uint32_t size = r.type == Type::fp32 ? 4 : 2;
#pragma unroll
    for (int part = 0; part < parts; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t row = row0 + Places::part_rows * part + 8 * half - r.row;
        if (row >= r.rows) continue;  // also where the subtraction wrapped
        std::byte* line = first + static_cast<std::uint64_t>(row) * r.pitch;
#pragma unroll
        for (int block = 0; block < columns / 8; ++block)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const std::uint32_t col = block * 8 + quad * 2 + c + col0;
            if (col < r.cols)
              store_element(size == 4 ? Type::fp32 : Narrow, line + col * size,
                            acc[part * per_part + 4 * block + 2 * half + c]);
          }
      }
  }

  /// acc = slots[0] + ... + slots[own-1] + acc + slots[own] + ..., slots in register order, 16 bits an element. They
  /// lie in stages as slot_stages says: enter() waits for one and returns what reads this thread's part of a plane,
  /// leave() gives it back.
  template <int Slots, int Planes, typename Enter, typename Leave>
  __device__ __forceinline__ static void add_slots(float (&acc)[Registers], int own, Enter&& enter, Leave&& leave) {
    constexpr int fit = static_cast<int>(slot_stages(units, Planes, Slots).units);
#pragma unroll
    for (int first = 0; first < units; first += fit) {
      const auto plane = enter();
#pragma unroll
      for (int u = 0; u < fit && first + u < units; ++u) {
        // NOTE: nothing is loaded ahead of this: all units of a stage at once would not fit the registers.
        if (u % 2 == 0) __syncwarp();
        float* eight = acc + 8 * (first + u);
        float sum[8] = {};
        int place;
        asm volatile("mov.u32 %0, %1;" : "=r"(place) : "r"(own));  // opaque, unit by unit
#pragma unroll
        for (int s = 0; s <= Slots; ++s) {
          // NOTE: zero added instead of a branch: branches on `own` make the compiler keep a copy of all registers a
          // case.
#pragma unroll
          for (int e = 0; e < 8; ++e) sum[e] += s == place ? eight[e] : 0.0f;
          if (s < Slots) add_eight(Narrow, plane(s * fit + u), sum);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) eight[e] = sum[e];
      }
      leave();
    }
  }

  /// Adds any number and type of slots, from where they were left. What the chunk takes of a slot is all in flight at
  /// once; more would not fit the registers.
  __device__ __forceinline__ static void add_any(float (&acc)[Registers], const TaskEntry& task,
                                                 const RegionEntry* adds, std::uint32_t copy, std::uint32_t thread) {
    constexpr int chunk = units < 4 ? units : units <= 8 ? 4 : 2;
    static_assert(units % chunk == 0);
#pragma unroll
    for (int unit = 0; unit < units; unit += chunk) {
      float sum[8 * chunk] = {};
#pragma unroll 1
      for (std::uint32_t s = 0; s <= task.adds; ++s) {
        if (s == task.own) {
#pragma unroll
          for (int e = 0; e < 8 * chunk; ++e) sum[e] += acc[8 * unit + e];
        }
        if (s == task.adds) break;
        const RegionEntry& r = adds[s];
        const auto* first = reinterpret_cast<const uint4*>(first_of(r, nullptr, copy)) + thread;
        uint4 bits[2 * chunk];
        if (r.type == Type::fp32) {
#pragma unroll
          for (int i = 0; i < 2 * chunk; ++i) bits[i] = load_slot(first + (2 * unit + i) * Threads);
#pragma unroll
          for (int i = 0; i < 2 * chunk; ++i) add_four(bits[i], sum + 4 * i);
        } else {
#pragma unroll
          for (int i = 0; i < chunk; ++i) bits[i] = load_slot(first + (unit + i) * Threads);
#pragma unroll
          for (int i = 0; i < chunk; ++i) add_eight(Narrow, bits[i], sum + 8 * i);
        }
      }
#pragma unroll
      for (int e = 0; e < 8 * chunk; ++e) acc[8 * unit + e] = sum[e];
    }
  }

  /// acc += the tile's columns of the bias, of which there are `cols`, an even number, or more than the tile's.
  __device__ __forceinline__ static void add_bias(float (&acc)[Registers], const std::uint16_t* bias,
                                                  std::uint32_t cols, std::uint32_t thread) {
#pragma unroll
    for (int block = 0; block < columns / 8; ++block) {
      const std::uint32_t col = Places::col(thread) + block * 8 + thread % 4 * 2;
      std::uint32_t bits = 0;
      // Volatile: some columns at a time, since all at once would not fit the registers.
      if (col < cols) asm volatile("ld.global.u32 %0, [%1];" : "=r"(bits) : "l"(bias + col));
      const float2 two = two_from<Narrow>(bits);
#pragma unroll
      for (int part = 0; part < parts; ++part)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          acc[part * per_part + 4 * block + 2 * half] += two.x;
          acc[part * per_part + 4 * block + 2 * half + 1] += two.y;
        }
    }
  }

  /// acc *= the scales of the rows, then those of the columns, of a tile of `rows` and an even number of `cols`, or
  /// more than the tile's. Without `each`, all rows have one, and all columns.
  __device__ __forceinline__ static void scale(float (&acc)[Registers], const TileScales& scales, bool each,
                                               std::uint32_t rows, std::uint32_t cols, std::uint32_t thread) {
    float of_rows[parts][2];
#pragma unroll
    for (int part = 0; part < parts; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const std::uint32_t row = Places::row(thread) + Places::part_rows * part + 8 * half;
        of_rows[part][half] = __ldcg(scales.a + (each ? min(row, rows - 1) : 0));
      }
    const float one = each ? 0.0f : __ldcg(scales.b);
#pragma unroll
    for (int block = 0; block < columns / 8; ++block) {
      const std::uint32_t col = Places::col(thread) + block * 8 + thread % 4 * 2;
      float low = one, high = one;
      // Volatile: some columns at a time, since all at once would not fit the registers.
      if (each && col < cols)
        asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(low), "=f"(high) : "l"(scales.b + col));
#pragma unroll
      for (int part = 0; part < parts; ++part)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float* two = acc + part * per_part + 4 * block + 2 * half;
          two[0] = two[0] * of_rows[part][half] * low;
          two[1] = two[1] * of_rows[part][half] * high;
        }
    }
  }

  __device__ __forceinline__ static void store(const float (&acc)[Registers], const RegionEntry& r, std::byte* first,
                                               std::uint32_t thread, Pace& pace) {
    if (r.order == SlotOrder::registers)
      store_slot(acc, r, first, thread, pace);
    else
      store_rows(acc, r, first, thread, pace);
  }

 private:
  __device__ __forceinline__ static uint4 load_slot(const uint4* address) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
  }

  /// Eight columns of this thread's row out of 32, four blocks of 8, of which the quad's threads hold two each.
  __device__ __forceinline__ static void gather(const float* v, std::uint32_t quad, std::uint32_t (&w)[4]) {
#pragma unroll
    for (int b = 0; b < 4; ++b) w[b] = two_to<Narrow>(v[4 * b], v[4 * b + 1]);
    transpose(w, quad);
  }

  /// Eight elements of a row, or those within the region; row and col wrap where they lie before it.
  __device__ __forceinline__ static void store_part(const RegionEntry& r, std::byte* first, std::uint32_t row,
                                                    std::uint32_t col, const std::uint32_t (&w)[4]) {
    if (row >= r.rows || col >= r.cols) return;
    std::byte* to = first + static_cast<std::uint64_t>(row) * r.pitch + col * 2;
    if (col + 8 <= r.cols) {
      *reinterpret_cast<uint4*>(to) = {w[0], w[1], w[2], w[3]};
      return;
    }
#pragma unroll
    for (std::uint32_t i = 0; i < 8; ++i)
      if (col + i < r.cols)
        reinterpret_cast<unsigned short*>(to)[i] = static_cast<unsigned short>(w[i / 2] >> (i % 2 * 16));
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
