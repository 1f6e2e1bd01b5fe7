// Arithmetic of launches.
#pragma once

#include <algorithm>
#include <cstdint>

namespace imbrex::cuda {

/// Bytes that are stored, and seen, at once.
inline constexpr std::uint64_t packet_size = 16;

constexpr std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) { return (a + b - 1) / b; }

/// Blocks for so many items, `a_block` of them in each; at least one.
constexpr std::uint32_t blocks_for(std::uint64_t items, std::uint64_t a_block, std::uint32_t most) {
  return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(ceil_div(items, a_block), 1, most));
}

}  // namespace imbrex::cuda
