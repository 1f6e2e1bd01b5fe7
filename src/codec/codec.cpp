// Names, sizes and the public bound.
#include "imbrex/codec.hpp"

#include <array>
#include <charconv>
#include <cmath>

#include "base/check.hpp"
#include "codec/group.hpp"
#include "codec/layout.hpp"

namespace imbrex {
namespace {

constexpr std::array<std::pair<CodeFormat, std::string_view>, 6> formats{{{CodeFormat::int8, "int8"},
                                                                          {CodeFormat::int6, "int6"},
                                                                          {CodeFormat::int5, "int5"},
                                                                          {CodeFormat::int4, "int4"},
                                                                          {CodeFormat::int3, "int3"},
                                                                          {CodeFormat::fp8, "fp8"}}};
constexpr std::array<std::pair<ScaleType, std::string_view>, 3> scales{
    {{ScaleType::bf16, "bf16"}, {ScaleType::fp32, "fp32"}, {ScaleType::e8m0, "e8m0"}}};

constexpr Codec paper(CodeFormat format) { return {format, true, 128, ScaleType::bf16}; }
constexpr std::array<std::pair<std::string_view, CodecPair>, 3> aliases{
    {{"flash8", {paper(CodeFormat::int8), paper(CodeFormat::int8)}},
     {"flash6", {paper(CodeFormat::int4), paper(CodeFormat::int8)}},
     {"flash4", {paper(CodeFormat::int4), paper(CodeFormat::int4)}}}};

/// Takes the text up to the separator off the front.
std::string_view take(std::string_view& text, char separator) {
  const std::size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  return part;
}

bool group_of(std::string_view part, int& group) {
  if (part.size() < 2 || part.front() != 'g') return false;
  const auto [end, error] = std::from_chars(part.data() + 1, part.data() + part.size(), group);
  return error == std::errc{} && end == part.data() + part.size();
}

}  // namespace

void validate(const Codec& codec) {
  IMBREX_EXPECTS(codec.group == 32 || codec.group == 64 || codec.group == 128,
                 "codec: groups of {} values; they must be of 32, 64 or 128", codec.group);
  IMBREX_EXPECTS(!codec.asymmetric || codec.format != CodeFormat::fp8,
                 "codec: fp8 is symmetric; only integer formats may be asymmetric");
}

std::string name_of(const Codec& codec) {
  std::string name;
  for (const auto& [format, text] : formats)
    if (format == codec.format) name = text;
  if (codec.asymmetric) name += "-asym";
  if (codec.group != Codec{}.group) name += fmt::format("-g{}", codec.group);
  for (const auto& [scale, text] : scales)
    if (scale == codec.scale && scale != Codec{}.scale) name += fmt::format("-{}", text);
  return name;
}

std::string name_of(const CodecPair& pair) {
  const std::string first = name_of(pair.reduce_scatter);
  return pair.reduce_scatter == pair.all_gather ? first : first + "+" + name_of(pair.all_gather);
}

Codec parse_codec(std::string_view name) {
  Codec codec;
  std::string_view rest = name;
  const std::string_view first = take(rest, '-');
  bool known = false, asymmetric = false, group = false, scale = false;
  for (const auto& [format, text] : formats)
    if (text == first) {
      codec.format = format;
      known = true;
    }
  IMBREX_EXPECTS(known, "codec '{}': '{}' is not a format; it must be int8, int6, int5, int4, int3 or fp8", name,
                 first);
  while (!rest.empty() || name.back() == '-') {
    const std::string_view part = take(rest, '-');
    bool* seen = nullptr;
    if (part == "asym") {
      codec.asymmetric = true;
      seen = &asymmetric;
    } else if (group_of(part, codec.group)) {
      seen = &group;
    }
    for (const auto& [value, text] : scales)
      if (part == text) {
        codec.scale = value;
        seen = &scale;
      }
    IMBREX_EXPECTS(seen, "codec '{}': '{}' must be asym, g32, g64, g128, bf16, fp32 or e8m0", name, part);
    IMBREX_EXPECTS(!*seen, "codec '{}': '{}' says what was said before", name, part);
    *seen = true;
  }
  validate(codec);
  return codec;
}

CodecPair parse_codec_pair(std::string_view name) {
  for (const auto& [alias, pair] : aliases)
    if (alias == name) return pair;
  std::string_view rest = name;
  const Codec first = parse_codec(take(rest, '+'));
  if (name.find('+') == std::string_view::npos) return {first, first};
  return {first, parse_codec(rest)};
}

std::int64_t wire_bytes(const Codec& codec, std::int64_t count) {
  validate(codec);
  IMBREX_EXPECTS(count >= 0, "wire_bytes: count = {}: it must not be negative", count);
  return codec::layout_of(codec, count).bytes;
}

double wire_bits(const Codec& codec) {
  validate(codec);
  return codec::code_bits(codec.format) + 8.0 * (codec::scale_bytes(codec) + codec::offset_bytes(codec)) / codec.group;
}

float error_bound(const Codec& codec, float low, float high) {
  validate(codec);
  IMBREX_EXPECTS(std::isfinite(low) && std::isfinite(high) && low <= high,
                 "error_bound: low = {}, high = {}: both must be finite, and low at most high", low, high);
  return codec::error_within(codec, low, high);
}

}  // namespace imbrex
