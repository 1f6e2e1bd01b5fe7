// Sparse matrices, and the triangular systems that they are.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace imbrex::apps::sparse {

/// The largest number of rows or columns: an entry's place takes 31 bits.
inline constexpr std::int64_t most_rows = (std::int64_t{1} << 31) - 2;

struct Entry {
  std::uint32_t row, col;
  double value;
};

struct Matrix {
  std::int64_t rows = 0, cols = 0;
  std::vector<Entry> entries;  ///< by row, then by column, none twice
};

/// Puts the entries in order; those of one place keep theirs.
void sort_entries(Matrix& matrix);

/// What of a matrix is the system.
enum class Part { whole, lower, upper };

Part parse_part(std::string_view name);

/// T x = b with T lower triangular, its rows in the order in which they can be solved: a system that is upper
/// triangular lies here backwards.
struct Triangular {
  std::int64_t rows = 0;
  bool backwards = false;
  std::vector<std::int64_t> begin;    ///< of each row's entries left of the diagonal; rows + 1
  std::vector<std::uint32_t> column;  ///< ascending in each row
  std::vector<double> value;
  std::vector<double> diagonal;

  std::int64_t entries() const { return static_cast<std::int64_t>(column.size()); }
  /// The row of the matrix, or of its transpose, that is solved at this place; and the other way round.
  std::int64_t row_at(std::int64_t place) const { return backwards ? rows - 1 - place : place; }
};

/// The system of `matrix`, or of its transpose. Throws Error(invalid_input) for a matrix that is not square, not
/// triangular where all of it is taken, or singular, naming the row, counted from 1 as files do.
Triangular triangular_of(const Matrix& matrix, Part part, bool transposed);

/// Throws Error(invalid_input) naming a row whose elements, rounded to T, are not finite, or whose diagonal is 0 then.
template <typename T>
void expect_solvable(const Triangular& system);

}  // namespace imbrex::apps::sparse
