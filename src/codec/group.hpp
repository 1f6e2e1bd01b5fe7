// A group's step and offset: from its values' extremes, to the wire and back, and the error that they allow.
#pragma once

#include "codec/format.hpp"

namespace imbrex::codec {

/// The extremes of some values, as ordered integers, so that NaN is beyond the infinities. Symmetric: `high` is the
/// largest magnitude. On a device each thread folds its blocks, then a group's threads merge theirs by shuffling `high`
/// and, if asymmetric, `low`.
struct Extremes {
  std::int32_t low;
  std::int32_t high;
};

/// A float as an integer of the same order, and back.
IMBREX_CODEC std::int32_t ordered(float value) {
  const std::uint32_t bits = bits_of(value);
  return static_cast<std::int32_t>(bits & sign_mask ? bits ^ magnitude_mask : bits);
}
IMBREX_CODEC float unordered(std::int32_t key) {
  const auto bits = static_cast<std::uint32_t>(key);
  return float_of(bits & sign_mask ? bits ^ magnitude_mask : bits);
}

IMBREX_CODEC Extremes no_extremes(const Codec& codec) {
  return codec.asymmetric ? Extremes{0x7fffffff, -0x7fffffff - 1} : Extremes{0, 0};
}

IMBREX_CODEC Extremes merge(const Codec& codec, Extremes a, Extremes b) {
  return {codec.asymmetric ? smaller(a.low, b.low) : 0, larger(a.high, b.high)};
}

template <int count>
IMBREX_CODEC Extremes fold(const Codec& codec, Extremes so_far, const float (&values)[count]) {
#ifdef __CUDA_ARCH__
  // A NaN need not come out with its own bits: groups with one are marked, whatever it is.
  float low = codec.asymmetric ? values[0] : 0, high = codec.asymmetric ? values[0] : fabsf(values[0]);
  for (int i = 1; i < count; ++i) {
    if (codec.asymmetric) low = smaller_or_nan(low, values[i]);
    high = larger_or_nan(high, codec.asymmetric ? values[i] : fabsf(values[i]));
  }
  if (codec.asymmetric) return merge(codec, so_far, {ordered(low), ordered(high)});
  return merge(codec, so_far, {0, static_cast<std::int32_t>(bits_of(high))});
#else
  for (int i = 0; i < count; ++i) {
    const auto magnitude = static_cast<std::int32_t>(bits_of(values[i]) & magnitude_mask);
    const std::int32_t key = codec.asymmetric ? ordered(values[i]) : magnitude;
    so_far = merge(codec, so_far, {key, key});
  }
  return so_far;
#endif
}

/// The largest magnitude among the finite values of a group with others, which is symmetric whatever the codec. Begin
/// with 0, merge by the larger.
IMBREX_CODEC std::int32_t fold_finite(const Range& range, std::int32_t so_far, const float (&values)[block_values]) {
  for (int i = 0; i < block_values; ++i) {
    const std::uint32_t magnitude = bits_of(values[i]) & magnitude_mask;
    so_far = larger(so_far, magnitude < bits_of(range.overflow) ? static_cast<std::int32_t>(magnitude) : 0);
  }
  return so_far;
}

/// Whether some value is not finite in the element type (or too low for an offset in bf16): then the group must be
/// marked, or travel raw.
IMBREX_CODEC bool needs_mark(const Codec& codec, const Range& range, Extremes extremes) {
  const auto overflow = static_cast<std::int32_t>(bits_of(range.overflow));
  if (!codec.asymmetric) return extremes.high >= overflow;
  const bool too_low = codec.scale != ScaleType::fp32 && extremes.low < ordered(-0x1.fep127f);
  return extremes.high >= overflow || extremes.low <= ordered(-range.overflow) || too_low;
}

/// regular: codes are numbers. marked: the lowest and the two outermost codes are NaN and the infinities; symmetric.
/// raw: the values lie in the group's slot as elements.
enum class GroupKind : std::uint8_t { regular, marked, raw };

struct Group {
  GroupKind kind;
  float step;
  float offset;
  float inverse;             ///< of the step; asymmetric: twice it. Where made for encoding only
  std::uint32_t scale_word;  ///< as on the wire, in the low bytes
  std::uint32_t offset_word;
};

/// 2^exponent for exponents of normal numbers.
IMBREX_CODEC float power_of_two(int exponent) { return float_of(static_cast<std::uint32_t>(exponent + 127) << 23); }

/// The least exponent e with largest * 2^e >= magnitude: exact, by comparing fractions.
IMBREX_CODEC int exponent_for(float magnitude, float largest) {
  const std::uint32_t divisor = bits_of(largest);
  const std::uint32_t carried = bits_of(magnitude) + (fraction_mask - (divisor & fraction_mask));
  return static_cast<int>(carried >> 23) - static_cast<int>(divisor >> 23);
}

/// Scales of groups with non-finite values in E8M0, which has 16 patterns for them: 2^(2j - 12) over the top code, and
/// one for the rest.
IMBREX_CODEC float marked_e8m0_step(CodeFormat format, std::uint32_t word) {
  return word == 15 ? 0x1p127f : power_of_two(2 * static_cast<int>(word) - 12 - top_exponent(format));
}

/// Reciprocal of a step, times 1 or 2 (a power of two keeps it exact).
IMBREX_CODEC float reciprocal(ScaleType scale, float step, float times) {
  if (scale != ScaleType::e8m0) return times / step;
  if (step == 0x1p127f) return times * 0x1p-127f;
  return times * float_of((254u << 23) - bits_of(step));
}

/// A little above 1 / largest: by more than the roundings of this, of a half range and of a product with it.
IMBREX_CODEC constexpr float raised_reciprocal(float largest) { return 1.0f / largest * (1.0f + 0x1p-21f); }

/// A step rounded up to what the scale can write, except E8M0, whose exponents are found exactly.
IMBREX_CODEC float round_step(ScaleType scale, float step) {
  step = larger(step, smallest_step(scale));
  return scale == ScaleType::bf16 ? float_of((bits_of(step) + 0xffffu) & 0xffff0000u) : step;
}

IMBREX_CODEC std::uint32_t step_word(ScaleType scale, float step) {
  const std::uint32_t bits = bits_of(step);
  return scale == ScaleType::fp32 ? bits : scale == ScaleType::bf16 ? bits >> 16 : bits >> 23;
}

/// The group of values with these extremes, none of which needs a mark; except `inverse`.
IMBREX_CODEC Group measured_group(const Codec& codec, Extremes extremes) {
  const float largest = largest_code(codec);
  Group group{GroupKind::regular, 0, 0, 0, 0, 0};
  if (!codec.asymmetric) {
    const float magnitude = float_of(static_cast<std::uint32_t>(extremes.high));
    if (codec.scale == ScaleType::e8m0)
      group.step = power_of_two(larger(exponent_for(magnitude, largest), -110));
    else
      group.step = round_step(codec.scale, product(magnitude, raised_reciprocal(largest)));
  } else {
    const std::uint32_t low = bits_of(unordered(extremes.low));
    // An offset in bf16 is rounded down; halves keep the range of any two floats finite.
    group.offset =
        float_of(codec.scale == ScaleType::fp32 ? low : (low & sign_mask ? low + 0xffffu : low) & 0xffff0000u);
    const float half_range = multiply_add(unordered(extremes.high), 0.5f, -product(0.5f, group.offset));
    if (codec.scale == ScaleType::e8m0)
      group.step = power_of_two(larger(exponent_for(float_of(bits_of(half_range) + 1), largest) + 1, -110));
    else
      group.step = round_step(codec.scale, product(half_range, 2.0f * raised_reciprocal(largest)));
    group.offset_word = bits_of(group.offset) >> (codec.scale == ScaleType::fp32 ? 0 : 16);
  }
  group.scale_word = step_word(codec.scale, group.step);
  return group;
}

IMBREX_CODEC Group regular_group(const Codec& codec, Extremes extremes) {
  Group group = measured_group(codec, extremes);
  group.inverse = reciprocal(codec.scale, group.step, codec.asymmetric ? 2.0f : 1.0f);
  return group;
}

/// A group with non-finite values whose largest finite magnitude is `finite` (from fold_finite).
IMBREX_CODEC Group marked_group(const Codec& codec, std::int32_t finite) {
  const float largest = largest_marked_code(codec), magnitude = float_of(static_cast<std::uint32_t>(finite));
  Group group{GroupKind::marked, 0, 0, 0, 0, 0};
  if (codec.scale == ScaleType::e8m0) {
    const int above = exponent_for(magnitude, largest) + 12 + top_exponent(codec.format);
    group.scale_word = above <= 0 ? 0 : above > 28 ? 15 : static_cast<std::uint32_t>(above + 1) / 2;
    group.step = marked_e8m0_step(codec.format, group.scale_word);
  } else {
    group.step = round_step(codec.scale, product(magnitude, raised_reciprocal(largest)));
    group.scale_word = step_word(codec.scale, group.step) | (codec.scale == ScaleType::fp32 ? sign_mask : 0x8000u);
  }
  group.inverse = reciprocal(codec.scale, group.step, 1);
  return group;
}

IMBREX_CODEC Group raw_group(const Codec& codec) {
  const std::uint32_t word = codec.scale == ScaleType::fp32   ? infinity_bits
                             : codec.scale == ScaleType::bf16 ? infinity_bits >> 16
                                                              : 0xffu;
  return {GroupKind::raw, 0, 0, 0, word, 0};
}

/// The group that these words of the wire mean, for decoding.
IMBREX_CODEC Group read_group(const Codec& codec, std::uint32_t scale_word, std::uint32_t offset_word) {
  Group group{GroupKind::regular, 0, 0, 0, scale_word, offset_word};
  if (codec.scale == ScaleType::e8m0) {
    if (scale_word == 0xffu)
      group.kind = GroupKind::raw;
    else if (scale_word < 16)
      group.kind = GroupKind::marked;
    group.step = scale_word < 16 ? marked_e8m0_step(codec.format, scale_word) : float_of(scale_word << 23);
  } else {
    const std::uint32_t bits = codec.scale == ScaleType::fp32 ? scale_word : scale_word << 16;
    if (bits == infinity_bits)
      group.kind = GroupKind::raw;
    else if (bits & sign_mask)
      group.kind = GroupKind::marked;
    group.step = float_of(bits & magnitude_mask);
  }
  if (group.kind == GroupKind::raw) group.step = 0;
  if (codec.asymmetric && group.kind == GroupKind::regular)
    group.offset = float_of(codec.scale == ScaleType::fp32 ? offset_word : offset_word << 16);
  return group;
}

/// Largest magnitude that the group's codes can stand for; may be infinite. Not for unquantized groups.
IMBREX_CODEC float magnitude_of(const Codec& codec, const Group& group) {
  if (group.kind == GroupKind::marked) return product(largest_marked_code(codec), group.step);
  return multiply_add(largest_code(codec), group.step, float_of(bits_of(group.offset) & magnitude_mask));
}

/// Largest possible |decoded - value| over the group's finite values: half a step (fp8: half the distance of its top
/// codes), and a little for the roundings of encoding and decoding; docs/dev/codec-format.md counts them.
IMBREX_CODEC float error_of(const Codec& codec, const Group& group) {
  if (group.kind == GroupKind::raw) return 0;
  if (codec.format == CodeFormat::fp8) return product(group.step, 16.0f + 0x1p-8f);
  if (!codec.asymmetric || group.kind == GroupKind::marked) return product(group.step, 0.5f + 0x1p-15f);
  return multiply_add(group.step, 0.5f + 0x1p-14f, product(magnitude_of(codec, group), 0x1p-23f));
}

/// The error within a group whose values lie in [low, high], both finite.
IMBREX_CODEC float error_within(const Codec& codec, float low, float high) {
  const auto magnitude =
      static_cast<std::int32_t>(larger(bits_of(low) & magnitude_mask, bits_of(high) & magnitude_mask));
  const Extremes extremes = codec.asymmetric ? Extremes{ordered(low), ordered(high)} : Extremes{0, magnitude};
  if (needs_mark(codec, range_of(Type::fp32), extremes)) return error_of(codec, marked_group(codec, magnitude));
  return error_of(codec, regular_group(codec, extremes));
}

}  // namespace imbrex::codec
