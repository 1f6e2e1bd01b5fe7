// What a rank sends another of some values: elements, or codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codec/chunk.hpp"

namespace imbrex::collectives {

class Wire {
 public:
  /// Elements of the type, or, with a codec, codes; `slots` as in codec::ChunkFormat.
  Wire(Type type, const std::optional<Codec>& codec, bool slots);

  /// Values that share a record; 32, 64 or 128.
  std::int64_t group() const { return format_ ? format_->codec.group : 128; }
  std::int64_t groups(std::int64_t count) const { return (count + group() - 1) / group(); }
  bool codes() const { return format_.has_value(); }
  std::size_t bytes(std::int64_t count) const;

  /// As codec::encode_chunk and decode_chunk; elements are rounded to the type.
  std::int64_t encode(const float* values, std::int64_t count, std::span<const float> allowed, std::byte* wire) const;
  void decode(const std::byte* wire, std::int64_t count, float* values, std::vector<codec::GroupRecord>& records) const;

  /// Copies what encode wrote to another place; of the slots, those in use.
  void copy(const std::byte* from, std::int64_t count, const std::vector<codec::GroupRecord>& records,
            std::byte* to) const;

 private:
  Type type_;
  std::optional<codec::ChunkFormat> format_;
};

}  // namespace imbrex::collectives
