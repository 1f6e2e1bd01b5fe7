// The same relaxation by one thread on the whole field: what results are compared with.
#pragma once

#include <cstdint>
#include <vector>

namespace imbrex::apps::jacobi {

/// Multiples of 2^-64.
__extension__ typedef unsigned __int128 ExactSum;

template <typename T>
struct Solution {
  std::int64_t rows, columns;
  std::vector<T> field;             ///< (rows + 2) x (columns + 2), with the boundary
  std::vector<ExactSum> residuals;  ///< of sweep every, 2 * every, ...

  T at(std::int64_t row, std::int64_t column) const {
    return field[static_cast<std::size_t>((row + 1) * (columns + 2) + column + 1)];
  }
};

/// For float and double.
template <typename T>
Solution<T> solve_serially(std::int64_t rows, std::int64_t columns, std::uint64_t seed, std::int64_t sweeps,
                           std::int64_t every);

/// Rounded once.
double rounded(ExactSum sum);

}  // namespace imbrex::apps::jacobi
