// What cuBLASLt knows for a product. Built everywhere.
#pragma once

#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::cuda {

/// What cuBLASLt suggests on the selected device for what a rank of the problem multiplies, best first, each once.
/// Throws Error(invalid_input) if it knows nothing, and in a build without it; Error(runtime_failure) where it cannot
/// be loaded.
std::vector<LibraryAlgorithm> library_suggestions(const Problem& problem);

}  // namespace imbrex::cuda
