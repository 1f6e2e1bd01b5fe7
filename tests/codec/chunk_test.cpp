// Whole chunks: errors against the bound, values that are not finite, unquantized groups, any length.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "base/convert.hpp"
#include "codec/bound.hpp"
#include "codec/chunk.hpp"
#include "codec/group.hpp"
#include "forms.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex::codec {
namespace {

using test::in_type;

struct Quantized {
  std::vector<float> values;
  std::vector<GroupRecord> records;
  std::int64_t raw_groups = 0;
};

Quantized through(const ChunkFormat& format, const std::vector<float>& values, std::span<const float> allowed = {}) {
  const auto count = static_cast<std::int64_t>(values.size());
  const ChunkLayout layout = format.layout(count);
  std::vector<std::byte> wire(static_cast<std::size_t>(layout.bytes) + 1, std::byte{0xa5});
  Quantized quantized{std::vector<float>(values.size()),
                      std::vector<GroupRecord>(static_cast<std::size_t>(layout.groups)), 0};
  quantized.raw_groups = encode_chunk(format, values.data(), count, allowed, wire.data());
  EXPECT_EQ(wire.back(), std::byte{0xa5});
  decode_chunk(format, wire.data(), count, quantized.values.data(), quantized.records.data());
  return quantized;
}

TEST(Chunk, NoErrorIsBeyondTheBoundAndTheBoundIsTight) {
  const std::uint64_t seed = test::seed_from_environment();
  for (const Codec& codec : test::all_codecs()) {
    SCOPED_TRACE(name_of(codec));
    double worst = 0;
    for (int i = 0; i < 120; ++i) {
      std::mt19937_64 random(seed + static_cast<std::uint64_t>(i));
      const Type type = static_cast<Type>(i % 3);
      const std::vector<float> values = test::random_values(random, type, 1 + random() % 700);
      const Quantized quantized = through({codec, type}, values);
      for (std::size_t j = 0; j < values.size(); ++j) {
        const GroupRecord& record = quantized.records[j / static_cast<std::size_t>(codec.group)];
        const double error = std::fabs(static_cast<double>(quantized.values[j]) - static_cast<double>(values[j]));
        ASSERT_LE(error, static_cast<double>(record.error)) << "case " << i << ", element " << j << ": " << values[j];
        ASSERT_LE(std::fabs(quantized.values[j]), record.magnitude);
        worst = std::max(worst, error / static_cast<double>(record.error));
      }
    }
    // Half of it, or three quarters of a step instead of a half, would be found out.
    EXPECT_GT(worst, 0.9);
  }
}

// What the roundings of encoding and decoding add to half a step shows only where a value lies beside the middle of two
// codes, which random values do not.
TEST(Chunk, TheBoundHoldsBesideTheMiddleOfTwoCodes) {
  std::mt19937_64 random(test::seed_from_environment());
  for (const Codec& codec : test::all_codecs()) {
    SCOPED_TRACE(name_of(codec));
    const bool fp8 = codec.format == CodeFormat::fp8;
    const double half = fp8 ? 16 : 0.5, first = fp8 ? 256 : 0;
    const auto middles = static_cast<std::uint64_t>((static_cast<double>(largest_code(codec)) - first) / (2 * half));
    double worst = 0;  // in halves of a step
    for (int i = 0; i < 300; ++i) {
      const float high = 1 + static_cast<float>(random() % (1u << 23)) * 0x1p-23f, low = codec.asymmetric ? -high : 0;
      const Extremes extremes = codec.asymmetric ? Extremes{ordered(low), ordered(high)}
                                                 : Extremes{0, static_cast<std::int32_t>(bits_of(high))};
      const Group group = regular_group(codec, extremes);
      std::vector<float> values(static_cast<std::size_t>(codec.group), high);
      values[1] = low;
      for (std::size_t j = 2; j < values.size(); ++j) {
        const double steps = first + half * static_cast<double>(2 * (random() % middles) + 1);
        float value = static_cast<float>(static_cast<double>(group.offset) + steps * static_cast<double>(group.step));
        for (auto ulps = random() % 3; ulps > 0; --ulps) value = std::nextafter(value, random() % 2 == 0 ? low : high);
        values[j] = std::min(value, high);
      }
      const Quantized quantized = through({codec, Type::fp32}, values);
      for (std::size_t j = 0; j < values.size(); ++j) {
        const double error = std::fabs(static_cast<double>(quantized.values[j]) - static_cast<double>(values[j]));
        ASSERT_LE(error, static_cast<double>(quantized.records[0].error)) << values[j] << " of " << high;
        worst = std::max(worst, error / (half * static_cast<double>(group.step)));
      }
    }
    // Products with steps of few digits are exact, and so are their errors.
    EXPECT_GE(worst, 1);
    if (codec.scale == ScaleType::fp32) {
      EXPECT_GT(worst, 1) << "half a step would do";
    }
  }
}

TEST(Chunk, TheBoundOfARangeHoldsForAnyValuesInIt) {
  std::mt19937_64 random(test::seed_from_environment());
  for (const Codec& codec : test::all_codecs())
    for (int i = 0; i < 40; ++i) {
      std::vector<float> values = test::random_values(random, Type::fp32, static_cast<std::size_t>(codec.group));
      const auto [low, high] = std::minmax_element(values.begin(), values.end());
      const float bound = error_bound(codec, *low, *high);
      const Quantized quantized = through({codec, Type::fp32}, values);
      for (std::size_t j = 0; j < values.size(); ++j)
        ASSERT_LE(std::fabs(static_cast<double>(quantized.values[j]) - static_cast<double>(values[j])),
                  static_cast<double>(bound))
            << name_of(codec);
    }
  EXPECT_THROW(error_bound({}, 1, 0), Error);
  EXPECT_THROW(error_bound({}, 0, std::nanf("")), Error);
}

TEST(Chunk, ZerosTinyAndAlikeGroups) {
  for (const Codec& codec : test::all_codecs()) {
    SCOPED_TRACE(name_of(codec));
    for (float value : through({codec, Type::bf16}, std::vector<float>(200, 0.0f)).values) ASSERT_EQ(value, 0);
    for (float scale : {1e-30f, 1e-20f, 1.0f, 1e30f}) {
      std::vector<float> values(static_cast<std::size_t>(codec.group));
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = in_type(Type::bf16, scale * (1 - static_cast<float>(i) / static_cast<float>(values.size())));
      const Quantized quantized = through({codec, Type::bf16}, values);
      const double bits = static_cast<double>(code_bits(codec.format));
      EXPECT_NEAR(static_cast<double>(quantized.values[0] / scale), 1,
                  codec.format == CodeFormat::fp8 ? 0.07 : 4 * std::exp2(-bits));
    }
    if (!codec.asymmetric) continue;
    for (float value : through({codec, Type::bf16}, std::vector<float>(70, 3.140625f)).values)
      ASSERT_EQ(value, 3.140625f);
  }
}

TEST(Chunk, NotFiniteValuesComeBackWhereTheyWere) {
  const float infinity = HUGE_VALF, nan = std::nanf("");
  std::mt19937_64 random(test::seed_from_environment());
  for (const Codec& codec : test::all_codecs())
    for (bool slots : {false, true})
      for (Type type : {Type::bf16, Type::fp16, Type::fp32}) {
        SCOPED_TRACE(name_of(codec));
        const std::size_t group = static_cast<std::size_t>(codec.group);
        std::vector<float> values(5 * group + 3);
        for (float& value : values) value = in_type(type, std::normal_distribution<float>()(random));
        for (std::size_t i = 0; i < group; ++i) values[i] = std::array{nan, infinity, -infinity, -nan}[i % 4];
        values[group + 5] = nan;
        values[2 * group + 7] = -infinity;
        values[3 * group] = infinity;
        values[3 * group + 1] = -infinity;
        values[5 * group + 2] = nan;  // the last, which fills up the last group
        const Quantized quantized = through({codec, type, slots}, values);
        EXPECT_EQ(quantized.raw_groups, slots ? 5 : 0);
        for (std::size_t i = 0; i < values.size(); ++i) {
          if (std::isnan(values[i])) {
            ASSERT_TRUE(std::isnan(quantized.values[i])) << i;
            continue;
          }
          if (std::isinf(values[i]) || (slots && i / group != 4)) {
            ASSERT_EQ(quantized.values[i], values[i]) << i;
            continue;
          }
          const float error = quantized.records[i / group].error;
          ASSERT_LE(std::fabs(static_cast<double>(quantized.values[i]) - static_cast<double>(values[i])),
                    static_cast<double>(error));
          // Finite neighbours keep a step of their own: one of about two codes fewer, or up to four times that for
          // E8M0.
          float magnitude = 0;
          for (std::size_t j = i / group * group; j < std::min((i / group + 1) * group, values.size()); ++j)
            if (std::isfinite(values[j])) magnitude = std::max(magnitude, std::fabs(values[j]));
          const float step = magnitude / codec::largest_marked_code(codec) * (codec.scale == ScaleType::e8m0 ? 4 : 1);
          ASSERT_LE(error, 1.01f * step * (codec.format == CodeFormat::fp8 ? 16.0f : 0.5f));
        }
      }
}

TEST(Chunk, SumsThatOverflowTheTypeAreInfinite) {
  const float infinity = HUGE_VALF;
  for (const Codec& codec : test::all_codecs()) {
    const Quantized half = through({codec, Type::fp16}, {65519.0f, -65520.0f, 70000.0f, 1.0f});
    EXPECT_EQ(half.values[1], -infinity);
    EXPECT_EQ(half.values[2], infinity);
    EXPECT_TRUE(std::isfinite(half.values[0]));
    EXPECT_LE(half.values[0], 65504.0f);
    // The largest finite values stay finite, however a step is rounded.
    for (Type type : {Type::bf16, Type::fp16, Type::fp32}) {
      const float largest = range_of(type).largest;
      const Quantized quantized = through({codec, type}, {largest, -largest, largest / 2, 0});
      for (float value : quantized.values) EXPECT_LE(std::fabs(value), largest) << name_of(codec);
      EXPECT_GT(quantized.values[0], 0.8f * largest);
    }
  }
}

TEST(Chunk, GroupsGoRawWhereTheirErrorIsNotAllowed) {
  const ChunkFormat format{{CodeFormat::int4, false, 32, ScaleType::bf16}, Type::bf16, true};
  std::vector<float> values(100);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = in_type(Type::bf16, std::sin(static_cast<float>(i)));
  values[40] = 1000;
  const std::vector<float> allowed(4, 0.2f);
  const Quantized quantized = through(format, values, allowed);
  EXPECT_EQ(quantized.raw_groups, 1);
  for (std::size_t g = 0; g < 4; ++g) {
    EXPECT_EQ(quantized.records[g].raw, g == 1);
    EXPECT_LE(quantized.records[g].error, 0.2f);
  }
  for (std::size_t i = 32; i < 64; ++i) EXPECT_EQ(quantized.values[i], values[i]);
  EXPECT_EQ(quantized.records[1].magnitude, 1000);
  EXPECT_EQ(through(format, values, std::vector<float>(4, 0.0f)).raw_groups, 4);
}

TEST(Chunk, AnyLengthAndFixedAddresses) {
  std::mt19937_64 random(test::seed_from_environment());
  for (const Codec& codec : test::all_codecs())
    for (std::int64_t count = 0; count < 300; count += count < 140 ? 1 : 37) {
      std::vector<float> values(static_cast<std::size_t>(count));
      for (float& value : values) value = std::normal_distribution<float>()(random);
      const Quantized quantized = through({codec, Type::fp32}, values);
      // Whatever follows, a group is what it is alone.
      const std::int64_t whole = count / codec.group * codec.group;
      const Quantized first = through({codec, Type::fp32}, {values.begin(), values.begin() + whole});
      EXPECT_TRUE(std::equal(first.values.begin(), first.values.end(), quantized.values.begin()));
      const ChunkLayout layout = layout_of(codec, count);
      EXPECT_EQ(layout.bytes, wire_bytes(codec, count));
      for (std::int64_t begin : {layout.second, layout.scale, layout.offset, layout.slot, layout.bytes})
        EXPECT_EQ(begin % 16, 0);
    }
}

TEST(Chunk, RawSlotsLieBehindTheRest) {
  const Codec codec{CodeFormat::int6, true, 64, ScaleType::e8m0};
  const ChunkLayout layout = layout_of(codec, 130, 2);
  EXPECT_EQ(layout.groups, 3);
  EXPECT_EQ(layout.blocks, 24);
  EXPECT_EQ(layout.second, 96);        // 24 words of 4 bytes
  EXPECT_EQ(layout.scale, 96 + 48);    // 24 of 2
  EXPECT_EQ(layout.offset, 144 + 16);  // 3 bytes
  EXPECT_EQ(layout.slot, 160 + 16);    // 3 of 2
  EXPECT_EQ(layout.bytes, 176 + 3 * 64 * 2);
}

}  // namespace
}  // namespace imbrex::codec
