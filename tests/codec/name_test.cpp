#include <gtest/gtest.h>

#include <set>

#include "forms.hpp"
#include "imbrex/error.hpp"

namespace imbrex {
namespace {

TEST(CodecName, ThereAndBack) {
  std::set<std::string> names;
  for (const Codec& codec : test::all_codecs()) {
    EXPECT_EQ(parse_codec(name_of(codec)), codec) << name_of(codec);
    names.insert(name_of(codec));
    const CodecPair pair{codec, {}};
    EXPECT_EQ(parse_codec_pair(name_of(pair)), pair);
  }
  EXPECT_EQ(names.size(), test::all_codecs().size());
  EXPECT_EQ(name_of(Codec{}), "int8");
  EXPECT_EQ(name_of(Codec{CodeFormat::int4, true, 128, ScaleType::fp32}), "int4-asym-g128-fp32");
  EXPECT_EQ(name_of(parse_codec_pair("int4+int8")), "int4+int8");
  EXPECT_EQ(name_of(parse_codec_pair("int8+int8")), "int8");
  EXPECT_EQ(name_of(parse_codec_pair("flash6")), "int4-asym-g128+int8-asym-g128");
  EXPECT_EQ(parse_codec("fp8-e8m0-g64"), (Codec{CodeFormat::fp8, false, 64, ScaleType::e8m0}));
}

TEST(CodecName, WhatIsNoneIsRefusedByName) {
  const auto refuses = [](const std::string& name, const std::string& says) {
    try {
      parse_codec_pair(name);
      ADD_FAILURE() << name << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      EXPECT_NE(std::string(error.what()).find(says), std::string::npos) << error.what();
    }
  };
  refuses("", "''");
  refuses("int7", "'int7'");
  refuses("int8-", "''");
  refuses("int8-g16", "groups of 16");
  refuses("int8-g", "'g'");
  refuses("int8-g32x", "'g32x'");
  refuses("int8-g99999999999", "'g99999999999'");
  refuses("int8-fp16", "'fp16'");
  refuses("int8-asym-asym", "'asym'");
  refuses("int8-bf16-fp32", "'fp32'");
  refuses("fp8-asym", "symmetric");
  refuses("int8+", "''");
  refuses("int8+int4+int3", "'int4+int3'");
  refuses("flash5", "'flash5'");
}

TEST(CodecSize, BitsOnTheWire) {
  EXPECT_EQ(wire_bits(parse_codec("int8")), 8.5);
  EXPECT_EQ(wire_bits(parse_codec("int8-e8m0")), 8.25);
  EXPECT_EQ(wire_bits(parse_codec("int6-g128-fp32")), 6.25);
  EXPECT_EQ(wire_bits(parse_codec("int4-asym-g128")), 4.25);
  EXPECT_EQ(wire_bits(parse_codec("int3-asym-e8m0")), 3.75);
  EXPECT_EQ(wire_bytes(parse_codec("int8"), 0), 0);
  EXPECT_EQ(wire_bytes(parse_codec("int8"), 1), 32 + 16);
  EXPECT_EQ(wire_bytes(parse_codec("int5"), 1 << 20), (1 << 20) / 2 + (1 << 20) / 8 + (1 << 20) / 16);
  EXPECT_THROW(wire_bytes({}, -1), Error);
  EXPECT_THROW(wire_bits({CodeFormat::int8, false, 48, ScaleType::bf16}), Error);
}

}  // namespace
}  // namespace imbrex
