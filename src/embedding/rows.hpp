// Rows of tables on the host.
#pragma once

#include <cstring>

#include "base/bits.hpp"
#include "base/convert.hpp"
#include "embedding/bags.hpp"

namespace imbrex::embedding {

constexpr Type type_of(TableRows type) {
  return type == TableRows::fp32 ? Type::fp32 : type == TableRows::bf16 ? Type::bf16 : Type::fp16;
}

/// `dim` columns of one row, as lookups add them.
inline void read_row(const Table& table, TableRows type, std::int64_t row, float* to) {
  const std::byte* at = static_cast<const std::byte*>(table.rows) + row * table.pitch;
  if (type != TableRows::int8) return base::to_float(type_of(type), at, to, table.dim);
  float scale_and_bias[2];
  std::memcpy(scale_and_bias, at + table.scale, sizeof scale_and_bias);
  for (std::int32_t i = 0; i < table.dim; ++i)
    to[i] = codec::multiply_add(scale_and_bias[0], static_cast<float>(std::to_integer<int>(at[i])), scale_and_bias[1]);
}

}  // namespace imbrex::embedding
