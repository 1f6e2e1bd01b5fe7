// Elements on the device: two of two bytes in a word, the first in the lower half, and 16 bytes of any.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "imbrex/types.hpp"

namespace imbrex::cuda {

/// Two values as elements, rounded to nearest even.
template <Type type>
__device__ __forceinline__ std::uint32_t two_to(float first, float second) {
  std::uint32_t bits;
  if constexpr (type == Type::bf16)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(second), "f"(first));
  return bits;
}

/// The two of a word.
template <Type type>
__device__ __forceinline__ float2 two_from(std::uint32_t word) {
  if constexpr (type == Type::bf16) return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
  return __half22float2(*reinterpret_cast<const __half2*>(&word));
}

/// The elements of 16 bytes as floats.
template <Type type>
struct Elements {
  static constexpr int count = type == Type::fp32 ? 4 : 8;

  template <typename Visit>
  static __device__ __forceinline__ void each(const uint4& p, Visit&& visit) {
    const std::uint32_t words[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (type == Type::fp32) {
        visit(__uint_as_float(words[i]));
      } else {
        const float2 two = two_from<type>(words[i]);
        visit(two.x);
        visit(two.y);
      }
    }
  }

  /// Rounded to nearest even.
  static __device__ __forceinline__ uint4 packed(const float* values) {
    std::uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (type == Type::fp32)
        words[i] = __float_as_uint(values[i]);
      else
        words[i] = two_to<type>(values[2 * i], values[2 * i + 1]);
    }
    return {words[0], words[1], words[2], words[3]};
  }
};

}  // namespace imbrex::cuda
