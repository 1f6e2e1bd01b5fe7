// Every codec, and random groups of every kind, for the tests of codecs.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "codec/format.hpp"
#include "imbrex/codec.hpp"

namespace imbrex::test {

inline std::vector<Codec> all_codecs() {
  std::vector<Codec> codecs;
  for (CodeFormat format :
       {CodeFormat::int8, CodeFormat::int6, CodeFormat::int5, CodeFormat::int4, CodeFormat::int3, CodeFormat::fp8})
    for (bool asymmetric : {false, true})
      for (int group : {32, 64, 128})
        for (ScaleType scale : {ScaleType::bf16, ScaleType::fp32, ScaleType::e8m0})
          if (!(asymmetric && format == CodeFormat::fp8)) codecs.push_back({format, asymmetric, group, scale});
  return codecs;
}

/// The float nearest to `value` that the type has, but never an infinity.
inline float in_type(Type type, float value) {
  const float largest = codec::range_of(type).largest;
  if (type == Type::fp32 || !std::isfinite(value)) return value;
  int exponent;
  std::frexp(value, &exponent);
  const int digits = type == Type::bf16 ? 8 : 11, lowest = type == Type::bf16 ? -133 : -24;
  const double unit = std::ldexp(1.0, std::max(exponent - digits, lowest));
  const double rounded = std::nearbyint(static_cast<double>(value) / unit) * unit;
  return static_cast<float>(std::clamp(rounded, -static_cast<double>(largest), static_cast<double>(largest)));
}

/// `count` finite values of the type, of one of the kinds that groups come in.
inline std::vector<float> random_values(std::mt19937_64& random, Type type, std::size_t count) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<float> values(count);
  const int kind = static_cast<int>(random() % 10);
  const int exponent = static_cast<int>(random() % (type == Type::fp16 ? 30 : 250)) - (type == Type::fp16 ? 15 : 125);
  const float scale = std::ldexp(1.0f, kind < 3 ? 0 : exponent), shift = normal(random) * 100;
  for (float& value : values) {
    switch (kind) {
      case 0:
      case 3: value = normal(random) * scale; break;
      case 1: value = 0.5f * normal(random) * (1 + std::erf(normal(random))); break;        // about GELU
      case 2: value = normal(random) / std::max(1e-3f, std::fabs(uniform(random))); break;  // heavy tails
      case 4: value = (shift + normal(random)) * std::ldexp(1.0f, exponent / 2); break;     // far from zero
      case 5: value = random() % 1000 == 0 ? 50 * normal(random) : normal(random); break;   // outliers
      case 6: value = scale; break;                                                         // all alike
      case 7: value = random() % 32 == 0 ? scale : scale * std::ldexp(uniform(random), -20); break;
      case 8:
        value = (random() % 2 ? 1.0f : -1.0f) * codec::range_of(type).largest * (random() % 3 ? 1.0f : 0.4f);
        break;
      default: value = std::ldexp(uniform(random), -120 - static_cast<int>(random() % 29)); break;  // denormals
    }
    value = in_type(type, std::clamp(value, -codec::range_of(type).largest, codec::range_of(type).largest));
  }
  return values;
}

}  // namespace imbrex::test
