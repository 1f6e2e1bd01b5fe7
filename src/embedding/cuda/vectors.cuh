// What one lane holds of a row: how it is loaded, and added; and how sums are stored.
#pragma once

#include <cstdint>

#include "base/bits.hpp"
#include "base/elements.cuh"
#include "embedding/bags.hpp"

namespace imbrex::embedding {

/// `columns` elements of a row: 16 bytes, or 8, or 4.
template <TableRows type, int columns>
struct Vector {
  static constexpr int bytes = columns * static_cast<int>(size_of(type)), words = bytes / 4;
  std::uint32_t word[words];
};

template <int columns>
struct Vector<TableRows::int8, columns> {
  static constexpr int bytes = columns, words = columns / 4;
  std::uint32_t word[words];
  float scale, bias;
};

/// How long the second level keeps what a load brings: as all else, or as what goes first.
__device__ __forceinline__ std::uint64_t cache_policy(bool goes_first) {
  std::uint64_t first, normal;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(normal));
  return goes_first ? first : normal;
}

// The first level keeps rows, too: else the popular ones of a table, which all SMs read at one time, are all asked of a
// few banks of the second level. Nothing is read, and all is zero, where `there` is not. NOTE: volatile, so that the
// loads of all rows in flight stay before the first one's use.
__device__ __forceinline__ void load_words(std::uint32_t (&to)[4], const std::byte* at, std::uint32_t there,
                                           std::uint64_t policy) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %5, 0; mov.u32 %0, 0; mov.u32 %1, 0; mov.u32 %2, 0; mov.u32 %3, 0;\n\t"
      "@p ld.global.nc.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %6;}"
      : "=&r"(to[0]), "=&r"(to[1]), "=&r"(to[2]), "=&r"(to[3])
      : "l"(at), "r"(there), "l"(policy));
}
__device__ __forceinline__ void load_words(std::uint32_t (&to)[2], const std::byte* at, std::uint32_t there,
                                           std::uint64_t policy) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %3, 0; mov.u32 %0, 0; mov.u32 %1, 0;\n\t"
      "@p ld.global.nc.L2::cache_hint.v2.u32 {%0, %1}, [%2], %4;}"
      : "=&r"(to[0]), "=&r"(to[1])
      : "l"(at), "r"(there), "l"(policy));
}
__device__ __forceinline__ void load_words(std::uint32_t (&to)[1], const std::byte* at, std::uint32_t there,
                                           std::uint64_t policy) {
  asm volatile(
      "{.reg .pred p; setp.ne.u32 p, %2, 0; mov.u32 %0, 0;\n\t@p ld.global.nc.L2::cache_hint.u32 %0, "
      "[%1], %3;}"
      : "=&r"(to[0])
      : "l"(at), "r"(there), "l"(policy));
}

/// `scale`: where the row's scale and bias lie, for int8.
template <TableRows type, int columns>
__device__ __forceinline__ void load_vector(Vector<type, columns>& to, const std::byte* at, const std::byte* scale,
                                            std::uint32_t there, std::uint64_t policy) {
  load_words(to.word, at, there, policy);
  if constexpr (type == TableRows::int8) {
    // They lie after all columns, and are read by all lanes of a team.
    std::uint32_t one[1], other[1];
    load_words(one, scale, there, policy);
    load_words(other, scale + 4, there, policy);
    to.scale = codec::float_of(one[0]), to.bias = codec::float_of(other[0]);
  }
}

/// Element i, i known when compiled.
template <TableRows type, int columns>
__device__ __forceinline__ float element(const Vector<type, columns>& v, int i) {
  if constexpr (type == TableRows::fp32) {
    return codec::float_of(v.word[i]);
  } else if constexpr (type == TableRows::int8) {
    // A code as the low bits of 2^23's fraction: exact, and at full rate, where the conversion has a quarter.
    const std::uint32_t bits = __byte_perm(v.word[i / 4], 0x4b000000u, 0x7440u | static_cast<unsigned>(i % 4));
    return codec::multiply_add(v.scale, codec::float_of(bits) - 0x1p23f, v.bias);
  } else {
    const float2 two = cuda::two_from < type == TableRows::bf16 ? Type::bf16 : Type::fp16 > (v.word[i / 2]);
    return i % 2 == 0 ? two.x : two.y;
  }
}

/// Rounds `columns` sums, and stores them.
template <Type out, int columns>
__device__ __forceinline__ void store_sums(std::byte* at, const float (&sum)[columns]) {
  if constexpr (out == Type::fp32) {
#pragma unroll
    for (int i = 0; i < columns; i += 4)
      reinterpret_cast<float4*>(at)[i / 4] = {sum[i], sum[i + 1], sum[i + 2], sum[i + 3]};
  } else if constexpr (columns == 8) {
    *reinterpret_cast<uint4*>(at) = cuda::Elements<out>::packed(sum);
  } else {
    *reinterpret_cast<uint2*>(at) = {cuda::two_to<out>(sum[0], sum[1]), cuda::two_to<out>(sum[2], sum[3])};
  }
}

}  // namespace imbrex::embedding
