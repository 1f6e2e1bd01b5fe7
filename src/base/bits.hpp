// What codecs and e4m3 need of the machine, the same on host and device: inlining, a float's bits, byte permutation.
#pragma once

#include <bit>
#include <cstdint>

#ifdef __CUDACC__
#define IMBREX_CODEC __host__ __device__ __forceinline__
#else
#define IMBREX_CODEC inline __attribute__((always_inline))
#endif

// Host and device give the same bits because every operation here is one that IEEE 754 defines to the last bit (sum,
// product, quotient, fused multiply-add, all rounded to nearest even) and no compiler may merge two of them: products
// go through product() or multiply_add(). Host sources that use them are compiled with -ffp-contract=off; nothing with
// fast-math.
namespace imbrex::codec {

IMBREX_CODEC std::uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(value);
#else
  return std::bit_cast<std::uint32_t>(value);
#endif
}

IMBREX_CODEC float float_of(std::uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(bits);
#else
  return std::bit_cast<float>(bits);
#endif
}

IMBREX_CODEC float multiply_add(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}

/// a * b, rounded, whatever it feeds.
IMBREX_CODEC float product(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}

template <typename T>
IMBREX_CODEC constexpr T smaller(T a, T b) {
  return b < a ? b : a;
}

template <typename T>
IMBREX_CODEC constexpr T larger(T a, T b) {
  return a < b ? b : a;
}

#ifdef __CUDA_ARCH__
// One instruction each, where comparing as integers takes two or three. A NaN wins, as the one that is largest as an
// integer; +0 is above -0.
__device__ __forceinline__ float larger_or_nan(float a, float b) {
  float value;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
}
__device__ __forceinline__ float smaller_or_nan(float a, float b) {
  float value;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(value) : "f"(a), "f"(b));
  return value;
}
#endif

constexpr std::uint32_t magnitude_mask = 0x7fffffffu, sign_mask = 0x80000000u, infinity_bits = 0x7f800000u,
                        nan_bits = 0x7fc00000u, fraction_mask = 0x7fffffu;

}  // namespace imbrex::codec
