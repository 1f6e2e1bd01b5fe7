// Matrices in the Matrix Market format.
#pragma once

#include <string_view>

#include "apps/sparse/matrix.hpp"

namespace imbrex::apps::sparse {

/// A matrix of coordinates: real, integer or pattern (every entry is 1), general or symmetric (both halves are in the
/// result). `title` is its name in messages. Throws Error(invalid_input) naming line and reason for anything else, for
/// numbers that are not finite, and for entries that lie outside, come twice, are missing or are too many. Nothing is
/// allocated that the length of the text does not bear out.
Matrix parse_matrix_market(std::string_view text, std::string_view title);

}  // namespace imbrex::apps::sparse
