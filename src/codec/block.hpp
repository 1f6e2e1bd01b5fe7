// A block: eight values of one group, their codes, and the codes' words in the planes of the wire.
#pragma once

#include "base/fp8.hpp"
#include "codec/group.hpp"

namespace imbrex::codec {

/// Eight codes, one a byte: values 0 to 3 in `low`, 4 to 7 in `high`, the first lowest.
struct Codes {
  std::uint32_t low;
  std::uint32_t high;
};

/// The codes as the planes hold them. First plane: 8 bits a code: both words; 4 bits: the first; 2 bits: its low half.
/// Second plane: 2 bits a code: the low half; 1 bit: the low byte.
struct Planes {
  std::uint32_t first[2];
  std::uint32_t second;
};

/// The lowest bytes of four words, in one.
IMBREX_CODEC std::uint32_t gather_bytes(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
#ifdef __CUDA_ARCH__
  return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
#else
  return (a & 0xffu) | (b & 0xffu) << 8 | (c & 0xffu) << 16 | d << 24;
#endif
}

/// A code as a float, less the bias: below 2^23 the bits of a float are those of an integer.
IMBREX_CODEC float code_to_float(std::uint32_t code, float bias) {
  return float_of(0x4b000000u | code) - (0x1p23f + bias);
}

/// byte_to_float of byte `i` of a word.
IMBREX_CODEC float byte_to_float(std::uint32_t word, int i, float bias) {
#ifdef __CUDA_ARCH__
  return float_of(__byte_perm(word, 0x4b000000u, 0x7440 + i)) - (0x1p23f + bias);
#else
  return code_to_float((word >> (8 * i)) & 0xffu, bias);
#endif
}

/// What NaN and the infinities become in a group that holds some: NaN, +infinity, -infinity.
struct Marks {
  std::uint32_t nan, positive, negative;
};

IMBREX_CODEC constexpr Marks marks_of(CodeFormat format) {
  if (format == CodeFormat::fp8) return {0x7f, 0x7e, 0xfe};
  return {0, (1u << code_bits(format)) - 1, 1};
}

/// What is added to a value over its step: 1.5 * 2^23 rounds it to an integer and leaves that in the lowest byte.
IMBREX_CODEC float raise_of(CodeFormat format, bool symmetric) {
  return 0x1.8p23f + (symmetric ? static_cast<float>(code_bias(format)) : 0.0f);
}

/// An integer's code in the lowest byte. `raise`: raise_of; `half_offset`: half of the group's.
IMBREX_CODEC std::uint32_t integer_code(bool symmetric, const Group& group, float value, float raise,
                                        float half_offset) {
  const float from_offset = symmetric ? value : multiply_add(value, 0.5f, -half_offset);
  return bits_of(multiply_add(from_offset, group.inverse, raise));
}

/// What it stands for. `code`: less the bias, if symmetric.
IMBREX_CODEC float integer_value(bool symmetric, const Group& group, float code) {
  return symmetric ? product(code, group.step) : multiply_add(code, group.step, group.offset);
}

/// Codes of eight values of a quantized group, all finite or not. In a regular group all are finite and none lies
/// outside.
IMBREX_CODEC Codes encode(const Codec& codec, const Range& range, const Group& group,
                          const float (&values)[block_values]) {
  std::uint32_t code[block_values];
  const bool symmetric = !codec.asymmetric || group.kind == GroupKind::marked;
  if (codec.format == CodeFormat::fp8) {
    for (int i = 0; i < block_values; i += 2) {
      const std::uint32_t pair = to_e4m3_pair(product(values[i], group.inverse), product(values[i + 1], group.inverse));
      code[i] = pair & 0xffu;
      code[i + 1] = pair >> 8;
    }
  } else {
    const float raise = raise_of(codec.format, symmetric), half_offset = product(0.5f, group.offset);
    for (int i = 0; i < block_values; ++i) code[i] = integer_code(symmetric, group, values[i], raise, half_offset);
  }
  if (group.kind == GroupKind::marked) {
    const Marks marks = marks_of(codec.format);
    for (int i = 0; i < block_values; ++i) {
      const std::uint32_t bits = bits_of(values[i]), magnitude = bits & magnitude_mask;
      if (magnitude >= bits_of(range.overflow))
        code[i] = magnitude > infinity_bits ? marks.nan : bits & sign_mask ? marks.negative : marks.positive;
    }
  }
  return {gather_bytes(code[0], code[1], code[2], code[3]), gather_bytes(code[4], code[5], code[6], code[7])};
}

/// The values that the codes of a group stand for, whatever the element type can hold, and as if none stood for NaN or
/// an infinity.
IMBREX_CODEC void decode_numbers(const Codec& codec, const Group& group, const Codes& codes,
                                 float (&values)[block_values]) {
  const bool symmetric = !codec.asymmetric || group.kind == GroupKind::marked;
  if (codec.format == CodeFormat::fp8) {
    for (int i = 0; i < block_values; i += 2) {
      const std::uint32_t word = i < 4 ? codes.low : codes.high;
      float low, high;
      from_e4m3_pair((word >> (i % 4 * 8)) & 0xffffu, low, high);
      values[i] = product(low, group.step);
      values[i + 1] = product(high, group.step);
    }
  } else {
    const float bias = symmetric ? static_cast<float>(code_bias(codec.format)) : 0.0f;
    for (int i = 0; i < block_values; ++i)
      values[i] = integer_value(symmetric, group, byte_to_float(i < 4 ? codes.low : codes.high, i % 4, bias));
  }
}

/// 2^15 + byte `i` of a word.
IMBREX_CODEC float raised_byte(std::uint32_t word, int i) {
#ifdef __CUDA_ARCH__
  return float_of(__byte_perm(word, 0x47000000u, 0x7504 | i << 4));
#else
  return float_of(0x47000000u | ((word >> (8 * i)) & 0xffu) << 8);
#endif
}

/// What decode_numbers gives for symmetric integers, in two operations a code, where the step has at most 8 bits, as in
/// bf16, and is below 2^109: (2^15 + code) step - (2^15 + bias) step. The second product has at most 22 bits, the
/// difference at most 16, so nothing is rounded.
IMBREX_CODEC void decode_short_steps(CodeFormat format, const Group& group, const Codes& codes,
                                     float (&values)[block_values]) {
  const float less = -product(0x1p15f + static_cast<float>(code_bias(format)), group.step);
  for (int i = 0; i < block_values; ++i)
    values[i] = multiply_add(raised_byte(i < 4 ? codes.low : codes.high, i % 4), group.step, less);
}

/// The values that the codes of a quantized group, all finite or not, stand for; at most `range.largest`, so that no
/// rounding of a step makes an infinity of a finite value.
IMBREX_CODEC void decode(const Codec& codec, const Range& range, const Group& group, const Codes& codes,
                         float (&values)[block_values]) {
  decode_numbers(codec, group, codes, values);
  if (!(magnitude_of(codec, group) <= range.largest))
    for (int i = 0; i < block_values; ++i) values[i] = larger(smaller(values[i], range.largest), -range.largest);
  if (group.kind == GroupKind::marked) {
    const Marks marks = marks_of(codec.format);
    for (int i = 0; i < block_values; ++i) {
      const std::uint32_t code = ((i < 4 ? codes.low : codes.high) >> (i % 4 * 8)) & 0xffu;
      if (code == marks.nan || (codec.format == CodeFormat::fp8 && code == 0xffu)) values[i] = float_of(nan_bits);
      if (code == marks.positive) values[i] = float_of(infinity_bits);
      if (code == marks.negative) values[i] = float_of(sign_mask | infinity_bits);
    }
  }
}

/// Eight codes of 4, 2 or 1 bits, one a byte, in 32, 16 or 8 bits; and back.
IMBREX_CODEC std::uint32_t pack_plane(int bits, std::uint32_t low, std::uint32_t high) {
  if (bits == 4) return low | high << 4;
  if (bits == 2) {
    const std::uint32_t pairs = low | high << 2;
    return (pairs | pairs >> 12) & 0xffffu;
  }
  const std::uint32_t pairs = low | high << 1, fours = pairs | pairs >> 14;
  return (fours | fours >> 4) & 0xffu;
}

IMBREX_CODEC Codes unpack_plane(int bits, std::uint32_t word) {
  if (bits == 4) return {word & 0x0f0f0f0fu, (word >> 4) & 0x0f0f0f0fu};
  if (bits == 2) {
    const std::uint32_t pairs = word | word << 12;
    return {pairs & 0x03030303u, (pairs >> 2) & 0x03030303u};
  }
  const std::uint32_t fours = (word | word << 4) & 0x0f0fu, pairs = fours | fours << 14;
  return {pairs & 0x01010101u, (pairs >> 1) & 0x01010101u};
}

IMBREX_CODEC Planes to_planes(CodeFormat format, const Codes& codes) {
  const int first = first_plane_bits(format), second = second_plane_bits(format);
  if (first == 8) return {{codes.low, codes.high}, 0};
  const std::uint32_t mask = ((1u << first) - 1u) * 0x01010101u;
  Planes planes{{pack_plane(first, codes.low & mask, codes.high & mask), 0}, 0};
  if (second != 0) {
    const std::uint32_t rest = ((1u << second) - 1u) * 0x01010101u;
    planes.second = pack_plane(second, (codes.low >> first) & rest, (codes.high >> first) & rest);
  }
  return planes;
}

IMBREX_CODEC Codes from_planes(CodeFormat format, const Planes& planes) {
  const int first = first_plane_bits(format), second = second_plane_bits(format);
  if (first == 8) return {planes.first[0], planes.first[1]};
  Codes codes = unpack_plane(first, planes.first[0]);
  if (second != 0) {
    const Codes rest = unpack_plane(second, planes.second);
    codes.low |= rest.low << first;
    codes.high |= rest.high << first;
  }
  return codes;
}

}  // namespace imbrex::codec
