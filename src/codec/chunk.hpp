// Whole chunks on the host: what the CPU's collectives send, and the reference for devices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/layout.hpp"

namespace imbrex::codec {

/// How a chunk is quantized. With slots, groups that are not allowed their error, or hold a value that is not finite,
/// travel unquantized, as elements of `type`.
struct ChunkFormat {
  Codec codec;
  Type type = Type::bf16;
  bool slots = false;

  ChunkLayout layout(std::int64_t count) const {
    return layout_of(codec, count, slots ? static_cast<int>(size_of(type)) : 0);
  }
};

/// What a group allows to say of its values.
struct GroupRecord {
  float error;      ///< largest |decoded - value| of the finite ones
  float magnitude;  ///< at least their largest |decoded|
  bool raw;
};

/// Writes `count` values, those of `format.type` or sums of them, to `wire` (16-byte aligned,
/// format.layout(count).bytes long; bytes that no plane needs are left alone). `allowed`: the error allowed to each
/// group; empty: any. Returns the number of groups that went raw.
std::int64_t encode_chunk(const ChunkFormat& format, const float* values, std::int64_t count,
                          std::span<const float> allowed, std::byte* wire);

/// Reads them back. `records`: null, or one for each group.
void decode_chunk(const ChunkFormat& format, const std::byte* wire, std::int64_t count, float* values,
                  GroupRecord* records);

}  // namespace imbrex::codec
