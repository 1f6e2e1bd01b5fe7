// Whether a solution is right.
#pragma once

#include <cstdint>
#include <vector>

#include "apps/sparse/matrix.hpp"

namespace imbrex::apps::sparse {

/// The row of those asked for whose residual is the largest part of its bound; but where the exact solution leaves the
/// range of T, the first such row.
struct Residual {
  double over_bound = 0;  ///< right is at most 1; infinite where a result is not finite
  double value = 0, bound = 0;
  std::int64_t row = -1, column = -1;  ///< of the matrix and of the right-hand sides, from 0
  bool overflows = false;              ///< what the row solves from is finite, and its element, `value`, is too large
};

/// Rows `first`, `first + step`, ... of the system in the order of solving, which right-hand sides and solution are in,
/// too: element (row, column) at row * columns + column. T is float or double.
///
/// The bound. Row i is x = (b - s) / d, rounded twice, where s sums m products and no term goes through more than m
/// roundings, in whatever order. So |b - T x| <= g(m) sum |t x| + g(2) |d x| with g(k) = k u / (1 - k u), and both are
/// at most g(max(m, 2)) of |T||x|. To this come halves of the smallest number for roundings of subnormal numbers, and
/// the roundings of the check itself, in long double. A row that solves from what is not finite has no finite solution.
template <typename T>
Residual worst_residual(const Triangular& system, const std::vector<T>& right, const std::vector<T>& solution,
                        std::int64_t columns, std::int64_t first = 0, std::int64_t step = 1);

}  // namespace imbrex::apps::sparse
