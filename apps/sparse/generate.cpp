#include "apps/sparse/generate.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "apps/common/check.hpp"

namespace imbrex::apps::sparse {
namespace {

constexpr std::array<std::string_view, 4> kind_names{"grid", "banded", "power_law", "block"};

// splitmix64.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    std::uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  std::int64_t below(std::int64_t count) { return static_cast<std::int64_t>(uniform() * static_cast<double>(count)); }
  /// An element off the diagonal, of a row of at most so many.
  double element(std::int64_t row_entries) { return (2 * uniform() - 1) / static_cast<double>(row_entries); }

 private:
  std::uint64_t state_;
};

void add(Matrix& matrix, std::int64_t row, std::int64_t col, double value) {
  matrix.entries.push_back({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(col), value});
}

void add_diagonal(Matrix& matrix, std::int64_t row, Random& random) { add(matrix, row, row, 1 + random.uniform()); }

void fill_grid(Matrix& matrix, Random& random) {
  constexpr std::int64_t tile = 32;
  constexpr double kept = 0.6;  // of the ways between neighbours: 2.4 meet at a crossing, as roads do
  const std::int64_t rows = matrix.rows;
  const auto width = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(rows))));
  const std::int64_t tiles = (width + tile - 1) / tile;
  std::vector<std::int64_t> order(static_cast<std::size_t>(tiles * tiles));
  std::iota(order.begin(), order.end(), 0);
  for (std::int64_t i = tiles * tiles - 1; i > 0; --i)
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(random.below(i + 1))]);
  std::vector<std::uint32_t> number(static_cast<std::size_t>(rows));
  std::uint32_t next = 0;
  for (const std::int64_t each : order) {
    const std::int64_t top = each / tiles * tile, left = each % tiles * tile;
    for (std::int64_t y = top; y < std::min(top + tile, width); ++y)
      for (std::int64_t x = left; x < std::min(left + tile, width); ++x)
        if (y * width + x < rows) number[static_cast<std::size_t>(y * width + x)] = next++;
  }
  const auto join = [&](std::int64_t a, std::int64_t b) {
    if (b >= rows || random.uniform() >= kept) return;
    const auto [low, high] = std::minmax(number[static_cast<std::size_t>(a)], number[static_cast<std::size_t>(b)]);
    add(matrix, high, low, random.element(4));
  };
  for (std::int64_t cell = 0; cell < rows; ++cell) {
    add_diagonal(matrix, cell, random);
    if (cell % width + 1 < width) join(cell, cell + 1);
    join(cell, cell + width);
  }
}

void fill_banded(Matrix& matrix, Random& random) {
  constexpr std::int64_t width = 16;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    for (std::int64_t col = std::max<std::int64_t>(row - width, 0); col < row; ++col)
      if (col == row - 1 || random.next() % 2 == 0) add(matrix, row, col, random.element(width));
    add_diagonal(matrix, row, random);
  }
}

void fill_power_law(Matrix& matrix, Random& random) {
  constexpr double exponent = 2.2;
  constexpr std::int64_t longest = 4096;
  std::vector<std::int64_t> columns;
  for (std::int64_t row = 0; row < matrix.rows; ++row) {
    const double length = std::pow(1 - random.uniform(), -1 / (exponent - 1));
    const auto count = std::min({static_cast<std::int64_t>(length), longest, row});
    columns.clear();
    for (std::int64_t i = 0; i < count; ++i) {
      const double u = random.uniform();
      columns.push_back(static_cast<std::int64_t>(u * u * static_cast<double>(row)));
    }
    std::sort(columns.begin(), columns.end());
    columns.erase(std::unique(columns.begin(), columns.end()), columns.end());
    for (const std::int64_t col : columns) add(matrix, row, col, random.element(count));
    add_diagonal(matrix, row, random);
  }
}

void fill_block(Matrix& matrix, Random& random) {
  constexpr std::int64_t side = 8, reach = 4096;
  for (std::int64_t first = 0; first < matrix.rows; first += side) {
    const std::int64_t block = first / side;
    std::array<std::int64_t, 2> left{};
    if (block > 0)
      for (std::int64_t& each : left) each = block - 1 - random.below(std::min(block, reach));
    std::sort(left.begin(), left.end());
    const auto last = block == 0 ? left.begin() : std::unique(left.begin(), left.end());
    for (std::int64_t row = first; row < std::min(first + side, matrix.rows); ++row) {
      for (auto each = left.begin(); each != last; ++each)
        for (std::int64_t col = *each * side; col < (*each + 1) * side; ++col)
          add(matrix, row, col, random.element(3 * side));
      for (std::int64_t col = first; col < row; ++col) add(matrix, row, col, random.element(3 * side));
      add_diagonal(matrix, row, random);
    }
  }
}

}  // namespace

Kind parse_kind(std::string_view name) {
  const auto found = std::find(kind_names.begin(), kind_names.end(), name);
  IMBREX_EXPECTS(found != kind_names.end(), "'{}': it must be {}", name, fmt::join(kind_names, ", "));
  return static_cast<Kind>(found - kind_names.begin());
}

std::string_view name_of(Kind kind) { return kind_names[static_cast<std::size_t>(kind)]; }

Matrix generate(Kind kind, std::int64_t rows, std::uint64_t seed) {
  IMBREX_EXPECTS(rows >= 1 && rows <= most_rows, "rows = {}: from 1 to {}", rows, most_rows);
  Matrix matrix{rows, rows, {}};
  Random random(seed * kind_names.size() + static_cast<std::uint64_t>(kind));
  switch (kind) {
    case Kind::grid: fill_grid(matrix, random); break;
    case Kind::banded: fill_banded(matrix, random); break;
    case Kind::power_law: fill_power_law(matrix, random); break;
    case Kind::block: fill_block(matrix, random); break;
  }
  sort_entries(matrix);
  return matrix;
}

}  // namespace imbrex::apps::sparse
