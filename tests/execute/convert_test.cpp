// Conversions between the element types and float: every 16-bit pattern, and rounding at every boundary.
#include <gtest/gtest.h>

#include <cmath>

#include "base/convert.hpp"

namespace imbrex {
namespace {

TEST(Convert, EveryPatternSurvives) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float from_bf16 = base::bf16_to_float(half), from_fp16 = base::fp16_to_float(half);
    if (std::isnan(from_bf16))
      EXPECT_TRUE(std::isnan(base::bf16_to_float(base::float_to_bf16(from_bf16))));
    else
      EXPECT_EQ(base::float_to_bf16(from_bf16), half);
    if (std::isnan(from_fp16))
      EXPECT_TRUE(std::isnan(base::fp16_to_float(base::float_to_fp16(from_fp16))));
    else
      EXPECT_EQ(base::float_to_fp16(from_fp16), half);
  }
}

TEST(Convert, Fp16MatchesItsDefinition) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const int exponent = static_cast<int>(bits >> 10), fraction = static_cast<int>(bits & 0x3ff);
    const double value = exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
    ASSERT_EQ(static_cast<double>(base::fp16_to_float(static_cast<std::uint16_t>(bits))), value);
  }
}

// Between two neighbours, below the middle goes down, above goes up, and the middle goes to the even one.
template <typename ToFloat, typename FromFloat>
void check_rounding(std::uint32_t infinity, ToFloat to, FromFloat from) {
  for (std::uint32_t bits = 0; bits + 1 < infinity; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1);
    const float middle = static_cast<float>((static_cast<double>(to(low)) + static_cast<double>(to(high))) / 2);
    ASSERT_EQ(from(middle), bits % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(from(std::nextafter(middle, 0.0f)), low) << bits;
    ASSERT_EQ(from(std::nextafter(middle, INFINITY)), high) << bits;
    ASSERT_EQ(from(-middle), (bits % 2 == 0 ? low : high) | 0x8000) << bits;
  }
}

TEST(Convert, RoundsToNearestEven) {
  check_rounding(0x7f80, base::bf16_to_float, base::float_to_bf16);
  check_rounding(0x7c00, base::fp16_to_float, base::float_to_fp16);
}

TEST(Convert, E4m3MatchesItsDefinition) {
  for (std::uint32_t bits = 0; bits < 0x7f; ++bits) {
    const auto code = static_cast<std::uint8_t>(bits);
    const int exponent = static_cast<int>(bits >> 3), fraction = static_cast<int>(bits & 7);
    const double value = exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
    ASSERT_EQ(static_cast<double>(base::e4m3_to_float(code)), value);
    ASSERT_EQ(base::e4m3_to_float(static_cast<std::uint8_t>(bits | 0x80)), -base::e4m3_to_float(code));
    ASSERT_EQ(base::float_to_e4m3(base::e4m3_to_float(code)), code);
    if (bits == 0x7e) break;
    const float next = base::e4m3_to_float(static_cast<std::uint8_t>(bits + 1)),
                middle = (base::e4m3_to_float(code) + next) / 2;
    ASSERT_EQ(base::float_to_e4m3(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    ASSERT_EQ(base::float_to_e4m3(std::nextafter(middle, 0.0f)), bits) << bits;
    ASSERT_EQ(base::float_to_e4m3(std::nextafter(middle, INFINITY)), bits + 1) << bits;
  }
  EXPECT_TRUE(std::isnan(base::e4m3_to_float(0x7f)) && std::isnan(base::e4m3_to_float(0xff)));
  EXPECT_TRUE(std::isnan(base::e4m3_to_float(base::float_to_e4m3(NAN))));
  EXPECT_EQ(base::float_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(base::float_to_e4m3(-INFINITY), 0xfe);
}

TEST(Convert, OverflowBecomesInfinity) {
  EXPECT_EQ(base::float_to_fp16(65519.0f), 0x7bff);
  EXPECT_EQ(base::float_to_fp16(65520.0f), 0x7c00);
  EXPECT_EQ(base::float_to_fp16(-1e30f), 0xfc00);
  EXPECT_EQ(base::float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace imbrex
