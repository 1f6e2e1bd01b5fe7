// FNV-1a, to compare what ranks and repeats have.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace imbrex::base {

/// `before`: the hash of what comes before these bytes.
constexpr std::uint64_t hash_of(std::span<const std::byte> bytes, std::uint64_t before = 14695981039346656037u) {
  for (const std::byte byte : bytes) before = (before ^ static_cast<std::uint64_t>(byte)) * 1099511628211u;
  return before;
}

}  // namespace imbrex::base
