// Conversions between the element types and float, rounding to nearest even; NaN stays NaN, overflow becomes infinity,
// or in e4m3, which has none, the largest finite number.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "base/fp8.hpp"
#include "imbrex/types.hpp"

namespace imbrex::base {

inline float e4m3_to_float(std::uint8_t code) { return codec::from_e4m3_by_integers(code); }

inline std::uint8_t float_to_e4m3(float value) { return static_cast<std::uint8_t>(codec::to_e4m3_by_integers(value)); }

inline float bf16_to_float(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>((nan ? bits | 0x400000u : rounded) >> 16);
}

inline float fp16_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  // Scaling by 2^112 moves fp16's exponent to fp32's, denormals included.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special =
      magnitude >= 0x7c00u ? 0x7f800000u | (magnitude << 13) : std::bit_cast<std::uint32_t>(scaled);
  return std::bit_cast<float>(sign | special);
}

inline std::uint16_t float_to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  } else if (magnitude >= 0x477ff000u) {  // 65520 rounds up to infinity
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {
    half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  } else {
    // Adding 0.5 aligns a denormal result's last bit with fp32's, and rounds.
    half = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  }
  return static_cast<std::uint16_t>(sign | half);
}

/// `count` elements of `type` at `from` to float.
inline void to_float(Type type, const void* from, float* to, std::int64_t count) {
  const auto* bits = static_cast<const std::uint16_t*>(from);
  switch (type) {
    case Type::bf16:
      for (std::int64_t i = 0; i < count; ++i) to[i] = bf16_to_float(bits[i]);
      return;
    case Type::fp16:
      for (std::int64_t i = 0; i < count; ++i) to[i] = fp16_to_float(bits[i]);
      return;
    case Type::fp32:  // no elements may have no address
      if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case Type::e4m3:
      for (std::int64_t i = 0; i < count; ++i) to[i] = e4m3_to_float(static_cast<const std::uint8_t*>(from)[i]);
      return;
  }
}

/// `count` floats to elements of `type` at `to`.
inline void from_float(Type type, const float* from, void* to, std::int64_t count) {
  auto* bits = static_cast<std::uint16_t*>(to);
  switch (type) {
    case Type::bf16:
      for (std::int64_t i = 0; i < count; ++i) bits[i] = float_to_bf16(from[i]);
      return;
    case Type::fp16:
      for (std::int64_t i = 0; i < count; ++i) bits[i] = float_to_fp16(from[i]);
      return;
    case Type::fp32:  // no elements may have no address
      if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case Type::e4m3:
      for (std::int64_t i = 0; i < count; ++i) static_cast<std::uint8_t*>(to)[i] = float_to_e4m3(from[i]);
      return;
  }
}

/// `values` as elements of `type`.
inline std::vector<std::byte> elements_of(Type type, std::span<const float> values) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  from_float(type, values.data(), bytes.data(), std::ssize(values));
  return bytes;
}

/// The values of whole elements of `type`.
inline std::vector<float> floats_of(Type type, std::span<const std::byte> elements) {
  std::vector<float> values(elements.size() / size_of(type));
  to_float(type, elements.data(), values.data(), std::ssize(values));
  return values;
}

}  // namespace imbrex::base
