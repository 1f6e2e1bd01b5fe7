// Element types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace imbrex {

/// Element type of an operand. Products always accumulate in fp32.
enum class Type : std::uint8_t { bf16, fp16, fp32 };

/// Bytes of one element.
constexpr std::size_t size_of(Type type) { return type == Type::fp32 ? 4 : 2; }

/// Unit roundoff of rounding to nearest: 2^-8 (bf16), 2^-11 (fp16), 2^-24 (fp32).
constexpr double unit_roundoff(Type type) {
  return type == Type::bf16 ? 0x1p-8 : type == Type::fp16 ? 0x1p-11 : 0x1p-24;
}

/// "bf16", "fp16" or "fp32".
std::string_view name_of(Type type);

/// The type of that name; throws Error(invalid_input) on any other string.
Type parse_type(std::string_view name);

}  // namespace imbrex
