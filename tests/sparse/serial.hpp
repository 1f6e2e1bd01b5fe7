// Triangular systems from a seed, and their solution by one loop.
#pragma once

#include <random>

#include "apps/sparse/generate.hpp"
#include "apps/sparse/matrix.hpp"

namespace imbrex::test {

/// A matrix with up to `most` rows: any pattern; or a chain, a diagonal, a matrix with empty rows, or one of
/// generate()'s. `integers`: elements -2 to 2, with diagonals 1 and -1 only, and few enough that all results are exact.
apps::sparse::Matrix random_triangular(std::mt19937_64& random, std::int64_t most, bool integers);

/// In the order of solving, of one right-hand side; and how far a solution may be from it: entry i solves the
/// comparison matrix' system with what row i may lack, as |T^-1| is at most that matrix' inverse.
struct Serial {
  std::vector<long double> solution;
  std::vector<long double> distance(const std::vector<double>& found, long double unit) const;

  const apps::sparse::Triangular& system;
};
Serial solve_serially(const apps::sparse::Triangular& system, const std::vector<double>& right);

}  // namespace imbrex::test
