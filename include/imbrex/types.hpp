// Element types.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace imbrex {

/// Element type of an operand. Products always accumulate in fp32. e4m3 (OCP 8-bit floating point: bias 7, no infinity,
/// largest number 448) is a type of A and B only.
enum class Type : std::uint8_t { bf16, fp16, fp32, e4m3 };

/// Bytes of one element.
constexpr std::size_t size_of(Type type) { return type == Type::fp32 ? 4 : type == Type::e4m3 ? 1 : 2; }

/// Type of the results, the bias and, unless fp32 is asked for, the partial products of a GEMM of that type.
constexpr Type output_type(Type type) { return type == Type::e4m3 ? Type::bf16 : type; }

/// Unit roundoff of rounding to nearest: 2^-8 (bf16), 2^-11 (fp16), 2^-24 (fp32), 2^-4 (e4m3).
constexpr double unit_roundoff(Type type) {
  return type == Type::bf16 ? 0x1p-8 : type == Type::fp16 ? 0x1p-11 : type == Type::e4m3 ? 0x1p-4 : 0x1p-24;
}

/// "bf16", "fp16", "fp32" or "e4m3".
std::string_view name_of(Type type);

/// The type of that name; throws Error(invalid_input) on any other string.
Type parse_type(std::string_view name);

}  // namespace imbrex
