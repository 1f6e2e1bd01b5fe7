// Tensor maps of a product's operands, for the TMA.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "imbrex/types.hpp"

namespace imbrex::cuda {

/// What one load brings: `outer` lines of memory, `inner` elements of each, to where lines follow each other. A line has
/// 128 or 64 bytes there, and its 16-byte parts are swizzled over as many.
struct TmaBox {
  std::uint32_t inner, outer;
};

/// The map of `lines` lines of `length` elements of `type`, the first of which lies at `address`; a line begins `pitch`
/// elements after the one before. Elements beyond the lines, or behind their ends, are loaded as zeros. Throws
/// Error(runtime_failure) where the driver makes no map.
CUtensorMap operand_map(Type type, const void* address, std::int64_t length, std::int64_t lines, std::int64_t pitch,
                        TmaBox box);

}  // namespace imbrex::cuda
