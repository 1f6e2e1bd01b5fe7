// Constants of the formats, and of the element types that they carry. Everything is a plain function of a Codec passed
// by value: where it is a constant of the caller, nothing of it is left in the code. (nvcc 13.0 takes no struct as
// template argument of a kernel: hand it the fields, and make the Codec inside.)
#pragma once

#include "base/bits.hpp"
#include "imbrex/codec.hpp"
#include "imbrex/types.hpp"

namespace imbrex::codec {

/// Values that are quantized together: the thread's share on a device, 16 bytes of bf16.
constexpr int block_values = 8;

IMBREX_CODEC constexpr int code_bits(CodeFormat format) {
  switch (format) {
    case CodeFormat::int8:
    case CodeFormat::fp8: return 8;
    case CodeFormat::int6: return 6;
    case CodeFormat::int5: return 5;
    case CodeFormat::int4: return 4;
    case CodeFormat::int3: return 3;
  }
  return 0;
}

/// Codes of symmetric integers are stored as code + bias, which is never 0 in a regular group.
IMBREX_CODEC constexpr int code_bias(CodeFormat format) { return 1 << (code_bits(format) - 1); }

/// The largest code: what a group's largest magnitude (asymmetric: its range) becomes at most.
IMBREX_CODEC constexpr float largest_code(const Codec& codec) {
  if (codec.format == CodeFormat::fp8) return 448;
  return static_cast<float>((1 << (code_bits(codec.format) - (codec.asymmetric ? 0 : 1))) - 1);
}

/// The largest code of a group with non-finite values, where the codes next to the ends stand for NaN and the
/// infinities.
IMBREX_CODEC constexpr float largest_marked_code(const Codec& codec) {
  if (codec.format == CodeFormat::fp8) return 416;
  return static_cast<float>((1 << (code_bits(codec.format) - 1)) - 2);
}

/// Exponent of the largest symmetric code.
IMBREX_CODEC constexpr int top_exponent(CodeFormat format) {
  return format == CodeFormat::fp8 ? 8 : code_bits(format) - 2;
}

/// The smallest step, so that neither it nor its reciprocal leaves fp32's normal numbers; E8M0 gives up 16 exponents
/// more, which mark groups.
IMBREX_CODEC constexpr float smallest_step(ScaleType scale) { return scale == ScaleType::e8m0 ? 0x1p-110f : 0x1p-126f; }

/// Bytes of a group's step, and of its offset (asymmetric only).
IMBREX_CODEC constexpr int scale_bytes(const Codec& codec) {
  return codec.scale == ScaleType::fp32 ? 4 : codec.scale == ScaleType::bf16 ? 2 : 1;
}
IMBREX_CODEC constexpr int offset_bytes(const Codec& codec) {
  return !codec.asymmetric ? 0 : codec.scale == ScaleType::fp32 ? 4 : 2;
}

/// Odd widths are split in two planes: 6 = 4 + 2, 5 = 4 + 1, 3 = 2 + 1 bits. Bytes of one block in each.
IMBREX_CODEC constexpr int first_plane_bits(CodeFormat format) {
  const int bits = code_bits(format);
  return bits == 8 ? 8 : bits >= 4 ? 4 : 2;
}
IMBREX_CODEC constexpr int second_plane_bits(CodeFormat format) { return code_bits(format) - first_plane_bits(format); }

/// What an element type can hold. Sums at or above `overflow` round to infinity.
struct Range {
  float largest;
  float overflow;
};

IMBREX_CODEC constexpr Range range_of(Type type) {
  switch (type) {
    case Type::bf16: return {0x1.fep127f, 0x1.ffp127f};
    case Type::fp16: return {65504.0f, 65520.0f};
    case Type::fp32:
    case Type::e4m3: break;  // collectives do not take it
  }
  return {0x1.fffffep127f, __builtin_huge_valf()};
}

}  // namespace imbrex::codec
