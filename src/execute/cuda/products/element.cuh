// Elements of any type in regions, eight at a time where they are aligned.
#pragma once

#include "base/elements.cuh"
#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

__device__ __forceinline__ std::byte* first_of(const RegionEntry& r, void* out, std::uint32_t copy) {
  std::uint64_t address = r.address + copy * r.copy_stride;
  if (r.base == Base::out) address += reinterpret_cast<std::uint64_t>(out);
  return reinterpret_cast<std::byte*>(address);
}

/// A tile's s-th store; `others`: those after the first.
__device__ __forceinline__ const RegionEntry& store_of(const TaskEntry& task, const RegionEntry* others,
                                                       std::uint32_t s) {
  return s == 0 ? task.store : others[s - 1];
}

/// Volatile: where it is written, since the compiler would bring all of them to registers at once.
__device__ __forceinline__ uint4 load_shared(std::uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address)
               : "memory");
  return v;
}

/// What came from a peer is read past the L1.
__device__ __forceinline__ float load_element(Type type, const std::byte* address) {
  if (type == Type::fp32) return __ldcg(reinterpret_cast<const float*>(address));
  const unsigned short bits = __ldcg(reinterpret_cast<const unsigned short*>(address));
  return type == Type::bf16 ? __bfloat162float(__ushort_as_bfloat16(bits)) : __half2float(__ushort_as_half(bits));
}

__device__ __forceinline__ void store_element(Type type, std::byte* address, float value) {
  if (type == Type::fp32)
    *reinterpret_cast<float*>(address) = value;
  else if (type == Type::bf16)
    *reinterpret_cast<__nv_bfloat16*>(address) = __float2bfloat16_rn(value);
  else
    *reinterpret_cast<__half*>(address) = __float2half_rn(value);
}

/// Two neighbours of a 16-bit type in one word; `low` is the first.
__device__ __forceinline__ std::uint32_t pack(Type type, float low, float high) {
  return type == Type::bf16 ? two_to<Type::bf16>(low, high) : two_to<Type::fp16>(low, high);
}
__device__ __forceinline__ float2 unpack(Type type, std::uint32_t bits) {
  return type == Type::bf16 ? two_from<Type::bf16>(bits) : two_from<Type::fp16>(bits);
}

__device__ __forceinline__ bool wide(const RegionEntry& r, const std::byte* first) {
  return r.type != Type::fp32 && r.pitch % 16 == 0 && reinterpret_cast<std::uint64_t>(first) % 16 == 0;
}

__device__ __forceinline__ void add_eight(Type type, const uint4& bits, float* sum) {
  const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 two = unpack(type, words[i]);
    sum[2 * i] += two.x;
    sum[2 * i + 1] += two.y;
  }
}

/// Adds four elements in fp32.
__device__ __forceinline__ void add_four(const uint4& bits, float* sum) {
  sum[0] += __uint_as_float(bits.x);
  sum[1] += __uint_as_float(bits.y);
  sum[2] += __uint_as_float(bits.z);
  sum[3] += __uint_as_float(bits.w);
}

/// Eight elements of a row, or those before `limit`.
__device__ __forceinline__ void load_eight(const RegionEntry& r, const std::byte* address, bool aligned,
                                           std::uint32_t limit, float* values) {
  if (aligned && limit >= 8) {
    const uint4 bits = __ldcg(reinterpret_cast<const uint4*>(address));
    const std::uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 two = unpack(r.type, words[i]);
      values[2 * i] = two.x;
      values[2 * i + 1] = two.y;
    }
    return;
  }
  const std::uint32_t size = r.type == Type::fp32 ? 4 : 2;
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i) values[i] = i < limit ? load_element(r.type, address + i * size) : 0.0f;
}

__device__ __forceinline__ void store_eight(const RegionEntry& r, std::byte* address, bool aligned, std::uint32_t limit,
                                            const float* values) {
  if (aligned && limit >= 8) {
    *reinterpret_cast<uint4*>(address) = {pack(r.type, values[0], values[1]), pack(r.type, values[2], values[3]),
                                          pack(r.type, values[4], values[5]), pack(r.type, values[6], values[7])};
    return;
  }
  const std::uint32_t size = r.type == Type::fp32 ? 4 : 2;
#pragma unroll
  for (std::uint32_t i = 0; i < 8; ++i)
    if (i < limit) store_element(r.type, address + i * size, values[i]);
}

/// Rows of `width` bytes, in parts of a T each.
template <typename T>
__device__ __forceinline__ void move_parts(const RegionEntry& from, const RegionEntry& to, const std::byte* source,
                                           std::byte* target, std::uint32_t width, std::uint32_t thread,
                                           std::uint32_t threads) {
  const std::uint32_t row_parts = width / sizeof(T), parts = from.rows * row_parts;
  for (std::uint32_t p = thread; p < parts; p += threads)
    *reinterpret_cast<T*>(target + p / row_parts * to.pitch + p % row_parts * sizeof(T)) =
        *reinterpret_cast<const T*>(source + p / row_parts * from.pitch + p % row_parts * sizeof(T));
}

/// A transfer task, by `threads` threads. `a`, `a_scale`: the caller's.
__device__ __forceinline__ void move(const TaskEntry& task, const RegionEntry* regions, const void* a,
                                     const float* a_scale, void* out, std::uint32_t copy, std::uint32_t thread,
                                     std::uint32_t threads) {
  const RegionEntry from = regions[task.regions], to = regions[task.regions + 1];
  const std::byte* source = first_of(from, out, copy);
  if (from.base == Base::a) source += reinterpret_cast<std::uint64_t>(a);
  if (from.base == Base::a_scale) source += reinterpret_cast<std::uint64_t>(a_scale);
  std::byte* target = first_of(to, out, copy);
  const std::uint32_t width = from.cols * static_cast<std::uint32_t>(size_of(from.type));
  const std::uint64_t bits =
      reinterpret_cast<std::uint64_t>(source) | reinterpret_cast<std::uint64_t>(target) | from.pitch | to.pitch | width;
  if (bits % 16 == 0) {
    constexpr int batch = 8;  // loads in flight
    const std::uint32_t row_parts = width / 16, parts = from.rows * row_parts;
    for (std::uint32_t first = thread; first < parts; first += batch * threads) {
      uint4 words[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const std::uint32_t p = min(first + i * threads, parts - 1);
        words[i] = __ldcg(reinterpret_cast<const uint4*>(source + p / row_parts * from.pitch + p % row_parts * 16));
      }
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const std::uint32_t p = first + i * threads;
        if (p < parts) *reinterpret_cast<uint4*>(target + p / row_parts * to.pitch + p % row_parts * 16) = words[i];
      }
    }
    return;
  }
  if (bits % 2 == 0)
    move_parts<std::uint16_t>(from, to, source, target, width, thread, threads);
  else  // e4m3
    move_parts<std::uint8_t>(from, to, source, target, width, thread, threads);
}

/// The common case of a reduction: a few sources of one 16-bit type, all aligned, and perhaps a bias of that type.
/// Loads of several parts and sources fly together.
template <int Sources>
__device__ __forceinline__ void reduce_wide(const TaskEntry& task, const RegionEntry* entries, const std::byte* bias,
                                            void* out, std::uint32_t copy, std::uint32_t thread,
                                            std::uint32_t threads) {
  constexpr int batch = 2;
  const Type type = entries[0].type;
  const std::byte* from[Sources];
  std::uint64_t pitch[Sources];
#pragma unroll
  for (int s = 0; s < Sources; ++s) {
    from[s] = first_of(entries[s], out, copy);
    pitch[s] = entries[s].pitch;
  }
  const std::uint32_t row_parts = task.cols / 8, parts = task.rows * row_parts;
  for (std::uint32_t first = thread; first < parts; first += batch * threads) {
    uint4 bits[batch][Sources];
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      const std::uint32_t p = min(first + b * threads, parts - 1);
#pragma unroll
      for (int s = 0; s < Sources; ++s)
        bits[b][s] = __ldcg(reinterpret_cast<const uint4*>(from[s] + p / row_parts * pitch[s] + p % row_parts * 16));
    }
#pragma unroll
    for (int b = 0; b < batch; ++b) {
      const std::uint32_t p = first + b * threads;
      if (p >= parts) break;
      float sum[8] = {};
#pragma unroll
      for (int s = 0; s < Sources; ++s) add_eight(type, bits[b][s], sum);
      if (bias != nullptr) add_eight(type, __ldcg(reinterpret_cast<const uint4*>(bias + p % row_parts * 16)), sum);
      for (std::uint32_t s = 0; s < task.stores; ++s) {
        const RegionEntry& r = entries[task.adds + s];
        std::byte* to = first_of(r, out, copy);
        store_eight(r, to + p / row_parts * r.pitch + p % row_parts * 8 * (r.type == Type::fp32 ? 4 : 2), wide(r, to),
                    8, sum);
      }
    }
  }
}

/// A reduction task, by `threads` threads: each sum in fp32, in the order of the sources. `bias`: the caller's, which
/// may be the last of them.
__device__ __forceinline__ void reduce(const TaskEntry& task, const RegionEntry* regions, const void* bias, void* out,
                                       std::uint32_t copy, std::uint32_t thread, std::uint32_t threads) {
  const RegionEntry* entries = regions + task.regions;
  const bool biased = entries[task.adds - 1].base == Base::bias;
  const std::byte* row_of_bias =
      biased ? static_cast<const std::byte*>(bias) + entries[task.adds - 1].address : nullptr;
  const std::uint32_t sources = task.adds - (biased ? 1 : 0);
  bool aligned = task.cols % 8 == 0;
  if (biased) aligned = aligned && wide(entries[sources], row_of_bias) && entries[sources].type == entries[0].type;
  for (std::uint32_t s = 0; s < sources; ++s) aligned = aligned && wide(entries[s], first_of(entries[s], out, copy));
  if (aligned && sources == 4) return reduce_wide<4>(task, entries, row_of_bias, out, copy, thread, threads);
  if (aligned && sources == 2) return reduce_wide<2>(task, entries, row_of_bias, out, copy, thread, threads);
  const std::uint32_t row_parts = (task.cols + 7) / 8, parts = task.rows * row_parts;
  for (std::uint32_t p = thread; p < parts; p += threads) {
    const std::uint32_t row = p / row_parts, col = p % row_parts * 8, limit = min(task.cols - col, 8u);
    float sum[8] = {};
    for (std::uint32_t s = 0; s < task.adds; ++s) {
      const RegionEntry r = entries[s];
      const std::byte* first = s < sources ? first_of(r, out, copy) : row_of_bias;
      float values[8];
      load_eight(r, first + row * r.pitch + col * (r.type == Type::fp32 ? 4 : 2), wide(r, first), limit, values);
#pragma unroll
      for (int i = 0; i < 8; ++i) sum[i] += values[i];
    }
    for (std::uint32_t s = 0; s < task.stores; ++s) {
      const RegionEntry r = entries[task.adds + s];
      std::byte* first = first_of(r, out, copy);
      store_eight(r, first + row * r.pitch + col * (r.type == Type::fp32 ? 4 : 2), wide(r, first), limit, sum);
    }
  }
}

}  // namespace imbrex::cuda
