// Extremes of the two elements of two bytes in a word, the first in the lower half.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "imbrex/types.hpp"

namespace imbrex::cuda {

template <Type type>
using Halves = std::conditional_t<type == Type::bf16, __nv_bfloat162, __half2>;

template <Type type>
__device__ __forceinline__ Halves<type> halves_of(std::uint32_t word) {
  return *reinterpret_cast<const Halves<type>*>(&word);
}
template <typename Halves>
__device__ __forceinline__ std::uint32_t word_of(const Halves& halves) {
  return *reinterpret_cast<const std::uint32_t*>(&halves);
}

/// The larger of each half of two words; a NaN wins.
template <Type type>
__device__ __forceinline__ std::uint32_t larger_halves(std::uint32_t a, std::uint32_t b) {
  return word_of(__hmax2_nan(halves_of<type>(a), halves_of<type>(b)));
}
template <Type type>
__device__ __forceinline__ std::uint32_t smaller_halves(std::uint32_t a, std::uint32_t b) {
  return word_of(__hmin2_nan(halves_of<type>(a), halves_of<type>(b)));
}

/// The larger magnitude of each half, with any sign.
template <Type type>
__device__ __forceinline__ std::uint32_t larger_magnitudes(std::uint32_t a, std::uint32_t b) {
  std::uint32_t larger;
  if constexpr (type == Type::bf16)
    asm("max.NaN.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  else
    asm("max.NaN.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(larger) : "r"(a), "r"(b));
  return larger;
}

/// The upper half of a word as a float.
template <Type type>
__device__ __forceinline__ float upper_half(std::uint32_t word) {
  if constexpr (type == Type::bf16) return __uint_as_float(word & 0xffff0000u);
  return __half2float(__ushort_as_half(static_cast<unsigned short>(word >> 16)));
}

}  // namespace imbrex::cuda
