// What a problem may hold at most, as docs/dev/plan-format.md states it.
#pragma once

#include <cstdint>
#include <limits>

namespace imbrex::problem {

/// Sizes of a problem, rows and columns of a buffer (of slots: their number and their elements), elements of a tile.
/// So products of two of them, and bytes of such, stay inside 64 bits.
inline constexpr std::int64_t most_extent = std::numeric_limits<std::int32_t>::max();

/// Bytes of all buffers of a rank, their copies included.
inline constexpr std::int64_t most_bytes = std::int64_t{1} << 46;

}  // namespace imbrex::problem
