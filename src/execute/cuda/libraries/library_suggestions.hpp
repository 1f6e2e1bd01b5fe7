// What cuBLASLt knows for a product. Built everywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::cuda {

/// What cuBLASLt suggests on the selected device for A (rows x depth) by B (depth x cols), best first, each once.
/// Throws Error(invalid_input) if it knows nothing, and in a build without it; Error(runtime_failure) where it cannot
/// be loaded.
std::vector<LibraryAlgorithm> library_suggestions(std::int64_t rows, std::int64_t cols, std::int64_t depth, Type type);

}  // namespace imbrex::cuda
