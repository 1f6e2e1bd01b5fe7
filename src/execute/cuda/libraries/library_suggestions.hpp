// What cuBLASLt knows for a product. Built everywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "imbrex/types.hpp"

namespace imbrex::cuda {

/// One of cuBLASLt's, as its own numbers tell it: the tile (0: none), and the parts that it cuts K into.
struct LibraryAlgorithm {
  int tile = 0, parts = 1;

  bool operator==(const LibraryAlgorithm&) const = default;
};

/// What cuBLASLt suggests on the selected device for A (rows x depth) by B (depth x cols), best first, each once.
/// Throws Error(invalid_input) if it knows nothing, and in a build without it; Error(runtime_failure) where it cannot
/// be loaded.
std::vector<LibraryAlgorithm> library_suggestions(std::int64_t rows, std::int64_t cols, std::int64_t depth, Type type);

}  // namespace imbrex::cuda
