// Lower triangular matrices of several kinds, from a seed.
#pragma once

#include <cstdint>
#include <string_view>

#include "apps/sparse/matrix.hpp"

namespace imbrex::apps::sparse {

enum class Kind {
  grid,       ///< like roads: a plane grid with holes, numbered by tiles that come in any order
  banded,     ///< 16 wide, each row next to the one before: nothing can be done at once
  power_law,  ///< a few rows are long, and a few columns are in many rows
  block,      ///< dense blocks of 8, on the diagonal and at two places left of it
};

Kind parse_kind(std::string_view name);
std::string_view name_of(Kind kind);

/// Diagonals lie in [1, 2), and outweigh the rest of their row. Throws Error(invalid_input)
/// for rows out of 1 to most_rows.
Matrix generate(Kind kind, std::int64_t rows, std::uint64_t seed);

}  // namespace imbrex::apps::sparse
