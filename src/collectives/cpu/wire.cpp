#include "collectives/cpu/wire.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/convert.hpp"

namespace imbrex::collectives {

Wire::Wire(Type type, const std::optional<Codec>& codec, bool slots) : type_(type) {
  if (codec) format_ = codec::ChunkFormat{*codec, type, slots};
}

std::size_t Wire::bytes(std::int64_t count) const {
  return format_ ? static_cast<std::size_t>(format_->layout(count).bytes)
                 : static_cast<std::size_t>(count) * size_of(type_);
}

std::int64_t Wire::encode(const float* values, std::int64_t count, std::span<const float> allowed,
                          std::byte* wire) const {
  if (format_) return codec::encode_chunk(*format_, values, count, allowed, wire);
  base::from_float(type_, values, wire, count);
  return 0;
}

void Wire::decode(const std::byte* wire, std::int64_t count, float* values,
                  std::vector<codec::GroupRecord>& records) const {
  records.resize(static_cast<std::size_t>(groups(count)));
  if (format_) return codec::decode_chunk(*format_, wire, count, values, records.data());
  base::to_float(type_, wire, values, count);
  for (std::size_t g = 0; g < records.size(); ++g) {
    const std::int64_t begin = static_cast<std::int64_t>(g) * group(), end = std::min(begin + group(), count);
    float magnitude = 0;
    for (std::int64_t i = begin; i < end; ++i)
      if (std::isfinite(values[i])) magnitude = std::max(magnitude, std::fabs(values[i]));
    records[g] = {0, magnitude, true};
  }
}

void Wire::copy(const std::byte* from, std::int64_t count, const std::vector<codec::GroupRecord>& records,
                std::byte* to) const {
  if (!format_) return static_cast<void>(std::memcpy(to, from, bytes(count)));
  const codec::ChunkLayout layout = format_->layout(count);
  std::memcpy(to, from, static_cast<std::size_t>(layout.slot));
  const auto slot = static_cast<std::size_t>(format_->codec.group) * size_of(type_);
  for (std::size_t g = 0; g < records.size(); ++g) {
    const std::size_t at = static_cast<std::size_t>(layout.slot) + g * slot;
    if (records[g].raw) std::memcpy(to + at, from + at, slot);
  }
}

}  // namespace imbrex::collectives
