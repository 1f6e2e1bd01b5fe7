// The float format e4m3 (OCP 8-bit floating point: bias 7, no infinity, 0x7f is NaN), rounding to nearest even and
// saturating at 448: on Hopper by its conversion instructions, elsewhere by integer arithmetic that gives the same
// bits.
#pragma once

#include "base/bits.hpp"

namespace imbrex::codec {

// Masks instead of branches: loops over these become vector instructions.
IMBREX_CODEC std::uint32_t either(bool first, std::uint32_t a, std::uint32_t b) {
  return b ^ ((a ^ b) & (0u - static_cast<std::uint32_t>(first)));
}

IMBREX_CODEC std::uint32_t to_e4m3_by_integers(float value) {
  const std::uint32_t bits = bits_of(value), magnitude = bits & magnitude_mask, sign = (bits >> 24) & 0x80u;
  const std::uint32_t normal = ((magnitude + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20) - (120u << 3);
  // Below 2^-6 codes are multiples of 2^-9, to which this sum rounds.
  const std::uint32_t small = bits_of(float_of(magnitude) + 0x1.8p14f) & 0xffu;
  const std::uint32_t code = either(magnitude >= 0x43e00000u, 0x7eu, either(magnitude >= 0x3c800000u, normal, small));
  return either(magnitude > infinity_bits, 0x7fu, sign | code);  // the instruction drops a NaN's sign
}

IMBREX_CODEC float from_e4m3_by_integers(std::uint32_t code) {
  const std::uint32_t sign = (code & 0x80u) << 24, magnitude = code & 0x7fu;
  const std::uint32_t normal = (magnitude << 20) + (120u << 23),
                      small = bits_of(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-9f);
  return float_of(either(magnitude == 0x7fu, nan_bits, sign | either(magnitude >= 8, normal, small)));
}

/// Two values to two codes in the low 16 bits, `low` in the lowest byte; and back.
IMBREX_CODEC std::uint32_t to_e4m3_pair(float low, float high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short codes;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
  return codes;
#else
  return to_e4m3_by_integers(low) | (to_e4m3_by_integers(high) << 8);
#endif
}

IMBREX_CODEC void from_e4m3_pair(std::uint32_t codes, float& low, float& high) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  // Every code is exact in fp16, but NaN, which groups with non-finite values never decode as a number.
  std::uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<unsigned short>(codes)));
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(halves));
#else
  low = from_e4m3_by_integers(codes & 0xffu);
  high = from_e4m3_by_integers((codes >> 8) & 0xffu);
#endif
}

}  // namespace imbrex::codec
