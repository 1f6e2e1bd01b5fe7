// Types of integers, which views of indices and of codes have.
#pragma once

#include "imbrex/types.hpp"

namespace imbrex {

/// No product and no collective takes them, and size_of knows floating point types only.
inline constexpr Type type_int8{16}, type_int32{17}, type_int64{18};

constexpr bool is_integer(Type type) { return type == type_int8 || type == type_int32 || type == type_int64; }

/// Bytes of one element of any type.
constexpr std::size_t bytes_of(Type type) {
  return type == type_int8 ? 1 : type == type_int32 ? 4 : type == type_int64 ? 8 : size_of(type);
}

}  // namespace imbrex
