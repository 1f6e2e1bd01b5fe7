// Every code and every scale of every format.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "codec/block.hpp"
#include "codec/bound.hpp"
#include "forms.hpp"
#include "support/random_plan.hpp"

namespace imbrex::codec {
namespace {

constexpr Range fp32 = range_of(Type::fp32);

std::vector<std::uint32_t> scale_words(ScaleType scale) {
  std::vector<std::uint32_t> words;
  if (scale != ScaleType::fp32) {
    for (std::uint32_t word = 0; word < (scale == ScaleType::e8m0 ? 256u : 65536u); ++word) words.push_back(word);
    return words;
  }
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) words.push_back(static_cast<std::uint32_t>(random()));
  for (std::uint32_t word : {0x00800000u, 0x7f7fffffu, infinity_bits, 0x3f800000u, 0xbf800000u}) words.push_back(word);
  return words;
}

// A word that no encoder writes: NaN, steps below the smallest, sums of codes beyond what a regular group holds.
bool written(const Codec& form, const Group& group) {
  if (group.kind == GroupKind::raw) return true;
  if (form.scale == ScaleType::e8m0) return group.scale_word != 16;
  const float top = group.kind == GroupKind::marked ? largest_marked_code(form) : largest_code(form);
  return std::isfinite(group.step) && group.step >= smallest_step(form.scale) &&
         group.step <= std::ldexp(1.0f / top, 127) * 2.01f;
}

std::vector<std::uint32_t> codes_of(const Codec& form, const Group& group) {
  std::vector<std::uint32_t> codes;
  const Marks marks = marks_of(form.format);
  for (std::uint32_t code = 0; code < (1u << code_bits(form.format)); ++code) {
    const std::uint32_t magnitude = code & 0x7fu;
    if (form.format == CodeFormat::fp8) {
      if (magnitude != 0x7f && code != 0x80) codes.push_back(code);
    } else if (group.kind == GroupKind::marked || form.asymmetric || code != marks.nan) {
      codes.push_back(code);
    }
  }
  return codes;
}

// What docs/dev/codec-format.md says that a code means.
double meaning(const Codec& form, const Group& group, std::uint32_t code) {
  const Marks marks = marks_of(form.format);
  if (group.kind == GroupKind::marked) {
    if (code == marks.nan) return std::nan("");
    if (code == marks.positive) return HUGE_VAL;
    if (code == marks.negative) return -HUGE_VAL;
  }
  const double step = static_cast<double>(group.step);
  if (form.format == CodeFormat::fp8) {
    const int exponent = static_cast<int>(code >> 3 & 15), fraction = static_cast<int>(code & 7);
    const double magnitude = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    return (code & 0x80 ? -magnitude : magnitude) * step;
  }
  if (form.asymmetric && group.kind == GroupKind::regular) return static_cast<double>(group.offset) + code * step;
  return (static_cast<double>(code) - code_bias(form.format)) * step;
}

TEST(Format, EveryCodeAndEveryScale) {
  std::mt19937_64 random(7);
  for (Codec form : test::all_codecs()) {
    if (form.group != 32) continue;  // no code depends on it
    SCOPED_TRACE(name_of(form));
    int kinds[3] = {};
    for (std::uint32_t word : scale_words(form.scale)) {
      const std::uint32_t offset_word =
          form.asymmetric ? static_cast<std::uint32_t>(random()) >> (form.scale == ScaleType::fp32 ? 0 : 16) : 0;
      Group group = read_group(form, word, offset_word);
      if (!written(form, group)) continue;
      ++kinds[static_cast<int>(group.kind)];
      if (group.kind == GroupKind::raw) continue;
      // An offset of about the step's size, so that codes and offsets both show in the value.
      if (form.asymmetric && group.kind == GroupKind::regular)
        group.offset = std::ldexp(static_cast<float>(static_cast<int>(random() % 255) - 127),
                                  std::ilogb(group.step) - (random() % 2 ? 0 : 3));
      if (!std::isfinite(group.offset)) group.offset = -fp32.largest;
      group.inverse =
          reciprocal(form.scale, group.step, form.asymmetric && group.kind == GroupKind::regular ? 2.0f : 1.0f);
      const std::vector<std::uint32_t> codes = codes_of(form, group);
      for (std::size_t i = 0; i < codes.size(); i += block_values) {
        std::uint32_t code[block_values];
        for (std::size_t j = 0; j < block_values; ++j) code[j] = codes[std::min(i + j, codes.size() - 1)];
        const Codes in{gather_bytes(code[0], code[1], code[2], code[3]),
                       gather_bytes(code[4], code[5], code[6], code[7])};
        const Codes through = from_planes(form.format, to_planes(form.format, in));
        ASSERT_EQ(through.low, in.low);
        ASSERT_EQ(through.high, in.high);
        float values[block_values];
        decode(form, fp32, group, in, values);
        bool clamped = false;
        for (int j = 0; j < block_values; ++j) {
          const double want = meaning(form, group, code[j]);
          if (std::isnan(want)) {
            ASSERT_TRUE(std::isnan(values[j]));
          } else if (std::fabs(want) > static_cast<double>(fp32.largest) && std::isfinite(want)) {
            ASSERT_EQ(std::fabs(values[j]), fp32.largest);
            clamped = true;
          } else {
            ASSERT_EQ(values[j], static_cast<float>(want)) << "code " << code[j] << ", scale word " << word;
          }
        }
        if (clamped) continue;
        const Codes out = encode(form, fp32, group, values);
        ASSERT_EQ(out.low, in.low) << "scale word " << word;
        ASSERT_EQ(out.high, in.high) << "scale word " << word;
      }
    }
    for (int kind : kinds) EXPECT_GT(kind, 0);
  }
}

// Every code, and every step in bf16 that decode_short_steps takes.
TEST(Format, ShortStepsDecodeAsAnyDo) {
  for (const CodeFormat format :
       {CodeFormat::int8, CodeFormat::int6, CodeFormat::int5, CodeFormat::int4, CodeFormat::int3}) {
    const Codec form{format, false, 32, ScaleType::bf16};
    for (std::uint32_t word = 0x0080; word < 0x7600; ++word) {
      const Group group = read_group(form, word, 0);
      for (std::uint32_t code = 0; code < (1u << code_bits(format)); code += block_values) {
        const std::uint32_t low = code * 0x01010101u + 0x03020100u;
        const Codes codes{low, low + 0x04040404u};
        float want[block_values], got[block_values];
        decode_numbers(form, group, codes, want);
        decode_short_steps(format, group, codes, got);
        for (int i = 0; i < block_values; ++i)
          ASSERT_EQ(bits_of(got[i]), bits_of(want[i])) << name_of(form) << " code " << code << ", scale word " << word;
      }
    }
  }
}

// What packets of codes take for a word that has not come: no group's step can be it.
TEST(Format, NoStepHasAllBitsSet) {
  std::mt19937_64 random(test::seed_from_environment());
  for (const Codec form : test::all_codecs()) {
    if (form.scale != ScaleType::bf16) continue;
    SCOPED_TRACE(name_of(form));
    const auto check = [&](const Group& group) { ASSERT_LE(group.scale_word, 0xff7fu); };
    check(raw_group(form));
    for (int turn = 0; turn < 100'000; ++turn) {
      // Any finite magnitude, every other time the largest.
      const auto magnitude = static_cast<std::int32_t>(turn % 2 == 0 ? infinity_bits - 1 : random() % infinity_bits);
      check(marked_group(form, magnitude));
      const float high = float_of(static_cast<std::uint32_t>(magnitude));
      const Extremes extremes = form.asymmetric ? Extremes{ordered(-high), ordered(high)} : Extremes{0, magnitude};
      if (!needs_mark(form, range_of(Type::fp32), extremes)) check(regular_group(form, extremes));
    }
  }
}

TEST(Format, StepsAreRoundedUpAndNoFurther) {
  std::mt19937_64 random(test::seed_from_environment());
  for (Codec form : test::all_codecs()) {
    if (form.group != 32 || form.asymmetric) continue;
    SCOPED_TRACE(name_of(form));
    const double top = static_cast<double>(largest_code(form)),
                 smallest = static_cast<double>(smallest_step(form.scale));
    for (int i = 0; i < 70000; ++i) {
      // All magnitudes of bf16, then floats; among them the ones that divide without rest.
      std::uint32_t bits =
          i < 0x7f80 ? static_cast<std::uint32_t>(i) << 16 : static_cast<std::uint32_t>(random()) % infinity_bits;
      if (i % 7 == 0) bits = bits_of(largest_code(form) * power_of_two(static_cast<int>(random() % 200) - 120));
      const double magnitude = static_cast<double>(float_of(bits));
      const Group group = regular_group(form, {0, static_cast<std::int32_t>(bits)});
      const double step = static_cast<double>(group.step);
      ASSERT_GE(step * top, magnitude);
      const double slack = form.scale == ScaleType::e8m0 ? 2 : form.scale == ScaleType::bf16 ? 1 + 0x1p-6 : 1 + 0x1p-20;
      ASSERT_TRUE(step == smallest || step * top < magnitude * slack) << magnitude;
      const Group read = read_group(form, group.scale_word, group.offset_word);
      ASSERT_EQ(read.step, group.step);
      ASSERT_EQ(read.kind, GroupKind::regular);
    }
  }
}

// Ranges of any two floats, and ranges of a power of two times the largest code, give or take what roundings of halves
// lose.
TEST(Format, StepsAndOffsetsHoldAllOfARange) {
  std::mt19937_64 random(test::seed_from_environment());
  for (Codec form : test::all_codecs()) {
    if (form.group != 32 || !form.asymmetric) continue;
    SCOPED_TRACE(name_of(form));
    const double top = static_cast<double>(largest_code(form)),
                 smallest = static_cast<double>(smallest_step(form.scale));
    for (int i = 0; i < 20000; ++i) {
      float low = float_of(static_cast<std::uint32_t>(random())), high = float_of(static_cast<std::uint32_t>(random()));
      if (i % 2 == 0) {
        high = largest_code(form) * power_of_two(static_cast<int>(random() % 160) - 80);
        low = random() % 2 == 0 ? 0 : -high * std::ldexp(1.0f, -static_cast<int>(random() % 40));
        const float towards = random() % 2 == 0 ? 0 : HUGE_VALF;
        for (auto ulps = random() % 3; ulps > 0; --ulps) high = std::nextafter(high, towards);
      }
      if (low > high) std::swap(low, high);
      const Extremes extremes{ordered(low), ordered(high)};
      if (std::isnan(low) || std::isnan(high) || needs_mark(form, fp32, extremes)) continue;
      const Group group = regular_group(form, extremes);
      const double step = static_cast<double>(group.step), offset = static_cast<double>(group.offset),
                   range = static_cast<double>(high) - offset;
      ASSERT_LE(group.offset, low);
      ASSERT_GE(step * top, range) << low << " to " << high;
      const double slack = form.scale == ScaleType::e8m0   ? 2 + 0x1p-20
                           : form.scale == ScaleType::bf16 ? 1 + 0x1p-6
                                                           : 1 + 0x1p-20;
      ASSERT_TRUE(step == smallest || step * top <= range * slack) << low << " to " << high;
      const Group read = read_group(form, group.scale_word, group.offset_word);
      ASSERT_EQ(read.kind, GroupKind::regular);
      ASSERT_EQ(read.step, group.step);
      ASSERT_EQ(bits_of(read.offset), bits_of(group.offset));
    }
  }
}

// An offset in bf16 is rounded down; bf16's own lowest needs no rounding, and nothing is below it.
TEST(Format, OffsetsInBf16AreAsLowAsBf16) {
  const float lowest = -0x1.fep127f, below = std::nextafter(lowest, -HUGE_VALF);
  for (Codec form : test::all_codecs()) {
    if (form.group != 32 || !form.asymmetric) continue;
    SCOPED_TRACE(name_of(form));
    const Extremes extremes{ordered(lowest), ordered(0)};
    EXPECT_FALSE(needs_mark(form, fp32, extremes));
    EXPECT_EQ(regular_group(form, extremes).offset, lowest);
    EXPECT_EQ(needs_mark(form, fp32, {ordered(below), ordered(0)}), form.scale != ScaleType::fp32);
  }
}

// What rounding a sum loses follows from the most that its codes can say, and no sum is beyond what the type holds.
TEST(Format, SumsThatCameAsCodesHaveATightBound) {
  constexpr float parts = 0.25f;
  for (Codec form : test::all_codecs()) {
    if (form.group != 32 || form.asymmetric) continue;
    SCOPED_TRACE(name_of(form));
    const auto rounding = [&](Type type, float magnitude) {
      const Group group = regular_group(form, {ordered(-magnitude), ordered(magnitude)});
      return quantized_output_error({parts, 0}, 1, type, form, range_of(type), group) - parts - error_of(form, group);
    };
    // The scale may be up to twice what the values need, and the bound is raised by 2^-14 of all of its terms.
    EXPECT_GE(rounding(Type::bf16, 1), 0x1p-8f);
    EXPECT_LE(rounding(Type::bf16, 1), 0x1p-7f + 0x1p-12f);
    EXPECT_GE(rounding(Type::fp16, 65504), 65504 * 0x1p-11f);
    EXPECT_LE(rounding(Type::fp16, 65504), 65504 * 0x1p-11f * 1.5f);
    EXPECT_LE(rounding(Type::fp32, 1), 0x1p-12f);
  }
}

// Whatever the codec, a group that is not regular has no offset, here or on the wire.
TEST(Format, GroupsThatAreNotRegularAreReadAsTheyWereWritten) {
  std::mt19937_64 random(test::seed_from_environment());
  for (Codec form : test::all_codecs()) {
    if (form.group != 32) continue;
    SCOPED_TRACE(name_of(form));
    const auto check = [&](const Group& group, GroupKind kind) {
      const Group read = read_group(form, group.scale_word, group.offset_word);
      ASSERT_EQ(group.kind, kind);
      ASSERT_EQ(read.kind, kind);
      ASSERT_EQ(read.step, group.step);
      ASSERT_EQ(bits_of(group.offset), 0u);
      ASSERT_EQ(group.offset_word, 0u);
    };
    check(raw_group(form), GroupKind::raw);
    for (int i = 0; i < 2000; ++i)
      check(marked_group(form, static_cast<std::int32_t>(random() % infinity_bits)), GroupKind::marked);
  }
}

TEST(Format, E4m3IsTheNearestCode) {
  // The codes in order, by their definition.
  std::vector<double> value;
  for (std::uint32_t code = 0; code < 0x7f; ++code)
    value.push_back(meaning({CodeFormat::fp8, false, 32, ScaleType::fp32}, {GroupKind::regular, 1, 0, 1, 0, 0}, code));
  EXPECT_EQ(value.back(), 448);
  const auto check = [&](std::uint32_t bits) {
    const double x = static_cast<double>(float_of(bits));
    std::uint32_t want = 0x7e;
    if (x < 448) {
      const auto above = static_cast<std::uint32_t>(std::upper_bound(value.begin(), value.end(), x) - value.begin());
      const double below = x - value[above - 1], rest = value[above] - x;
      want = below < rest || (below == rest && (above - 1) % 2 == 0) ? above - 1 : above;
    }
    ASSERT_EQ(to_e4m3_by_integers(float_of(bits)), want) << x;
    ASSERT_EQ(to_e4m3_by_integers(float_of(bits | sign_mask)), want | 0x80u) << -x;
  };
  for (std::uint32_t high = 0; high < 0x7f80; ++high)
    for (std::uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) check(high << 16 | low);
  for (double code : value) {
    const std::uint32_t bits = bits_of(static_cast<float>(code));
    for (std::uint32_t near = bits - std::min(bits, 3u); near < bits + 3; ++near) check(near);
    ASSERT_EQ(static_cast<double>(from_e4m3_by_integers(to_e4m3_by_integers(static_cast<float>(code)))), code);
  }
  EXPECT_EQ(to_e4m3_by_integers(float_of(nan_bits)), 0x7fu);
  EXPECT_TRUE(std::isnan(from_e4m3_by_integers(0x7f)));
}

TEST(Format, PlanesHoldEveryBit) {
  for (CodeFormat format : {CodeFormat::int8, CodeFormat::int6, CodeFormat::int5, CodeFormat::int4, CodeFormat::int3})
    for (int value = 0; value < block_values; ++value)
      for (int bit = 0; bit < code_bits(format); ++bit) {
        const std::uint32_t code = 1u << (8 * (value % 4) + bit);
        const Codes codes{value < 4 ? code : 0, value < 4 ? 0 : code};
        const Planes planes = to_planes(format, codes);
        // One bit in, one bit out, within the plane's words.
        EXPECT_EQ(std::popcount(planes.first[0]) + std::popcount(planes.first[1]) + std::popcount(planes.second), 1);
        if (first_plane_bits(format) < 8) {
          EXPECT_EQ(planes.first[1], 0u);
        }
        if (first_plane_bits(format) == 2) {
          EXPECT_LT(planes.first[0], 0x10000u);
        }
        EXPECT_LT(planes.second, 1u << 8 * second_plane_bits(format));
        const Codes back = from_planes(format, planes);
        EXPECT_EQ(back.low, codes.low);
        EXPECT_EQ(back.high, codes.high);
      }
}

}  // namespace
}  // namespace imbrex::codec
