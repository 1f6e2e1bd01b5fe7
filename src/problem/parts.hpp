// How the sizes of a rank's operands and those of the problem follow from each other.
#pragma once

#include "problem/descriptor.hpp"

namespace imbrex::problem {

/// 1 or the ranks: so many times the rows of a rank's A, the columns of its B and the depth of its product are M, N and
/// K; and so many times the rows of its A, over so many, are those of its output.
struct Parts {
  std::int64_t m = 1, n = 1, k = 1;
  std::int64_t rows_times = 1, rows_over = 1;
};

/// What the shapes say that the descriptor of an operator that multiplies gives. Throws Error(invalid_input) for another
/// one, and for ranks outside 1..max_ranks.
Parts parts_of(Operator op, int ranks);

}  // namespace imbrex::problem
