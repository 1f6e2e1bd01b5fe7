// The bound on an all-reduce's error, as its owner computes it: for some values at once, a block's or a group's.
#pragma once

#include "codec/group.hpp"
#include "imbrex/types.hpp"

namespace imbrex::codec {

/// Sums over the ranks, in any order.
struct Bound {
  float errors = 0;     ///< of the parts as decoded
  float roundings = 0;  ///< 2^-24 (and a little) of their largest magnitudes: what an addition may lose of them
};

/// A part that came as elements of at most `magnitude`.
IMBREX_CODEC void add_exact_part(Bound& bound, float magnitude) { bound.roundings += product(magnitude, 0x1.01p-24f); }

/// A part that came as codes of `group`.
IMBREX_CODEC void add_part(Bound& bound, const Codec& codec, const Range& range, const Group& group) {
  bound.errors += error_of(codec, group);
  add_exact_part(bound, smaller(magnitude_of(codec, group), range.largest));
}

/// Largest possible |sum in fp32 - exact sum| where all parts are finite.
IMBREX_CODEC float sum_error(const Bound& bound, int ranks) {
  if (ranks == 1) return bound.errors;
  // The constant is above what `roundings` loses to denormals, in a sum of up to 256 parts.
  return multiply_add(bound.roundings, static_cast<float>(ranks - 1), bound.errors) + 0x1p-132f;
}

/// Largest possible error of rounding a value of at most `magnitude` to the type.
IMBREX_CODEC float rounding_error(Type type, float magnitude) {
  switch (type) {
    case Type::bf16: return multiply_add(magnitude, 0x1p-8f, 0x1p-134f);
    case Type::fp16: return multiply_add(magnitude, 0x1p-11f, 0x1p-25f);
    case Type::fp32:
    case Type::e4m3: break;  // collectives do not take it
  }
  return 0;
}

/// A sum of positive terms, raised by more than the roundings of up to 256 of them.
IMBREX_CODEC float raised(float terms) { return product(terms, 1.0f + 0x1p-14f); }

/// What the tolerance leaves to one of `shares` equal shares: the ranks' parts, and the sums where they are quantized
/// too.
IMBREX_CODEC float part_allowance(float tolerance, int shares) {
  return product(tolerance, 1.0f - 0x1p-13f) / static_cast<float>(shares);
}

/// What it leaves to coding the sums, given the parts' errors.
IMBREX_CODEC float sum_allowance(float tolerance, float errors) { return product(tolerance, 1.0f - 0x1p-13f) - errors; }

/// Whether coding a rank's values in [low, high], both finite, or with `two_shot` sums of which they are the largest
/// part, could cost more than is allowed to each.
IMBREX_CODEC bool exceeds(const CodecPair& pair, const Range& range, int ranks, bool two_shot, float allowed, float low,
                          float high) {
  const float error = error_within(pair.reduce_scatter, low, high);
  if (error > allowed) return true;
  if (!two_shot) return false;
  const float magnitude = larger(float_of(bits_of(low) & magnitude_mask), float_of(bits_of(high) & magnitude_mask));
  // Every sum lies within the ranks' number times the largest part, whose rank is the one that votes.
  const float sum = product(product(static_cast<float>(ranks), magnitude + error), 1.0001f);
  return !(sum < range.overflow) || error_within(pair.all_gather, -sum, sum) > allowed;
}

/// Largest possible |output - exact sum| of values whose sums were sent as codes of `group`, or raw as elements of at
/// most `magnitude`.
IMBREX_CODEC float quantized_output_error(const Bound& bound, int ranks, Type type, const Codec& codec,
                                          const Range& range, const Group& group) {
  return raised(sum_error(bound, ranks) + error_of(codec, group) +
                rounding_error(type, smaller(magnitude_of(codec, group), range.largest)));
}
IMBREX_CODEC float raw_output_error(const Bound& bound, int ranks, Type type, float magnitude) {
  return raised(sum_error(bound, ranks) + rounding_error(type, magnitude));
}

}  // namespace imbrex::codec
