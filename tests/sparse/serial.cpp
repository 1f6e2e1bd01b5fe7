#include "sparse/serial.hpp"

#include <algorithm>
#include <cmath>
#include <set>

namespace imbrex::test {

using namespace apps::sparse;

Matrix random_triangular(std::mt19937_64& random, std::int64_t most, bool integers) {
  const auto below = [&](std::int64_t count) {
    return static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(count));
  };
  const std::int64_t rows = 1 + below(most), shape = below(6);
  if (shape == 5 && !integers) return generate(static_cast<Kind>(below(4)), rows, random());
  Matrix matrix{rows, rows, {}};
  // Sums of products of small integers stay below 2^24 where each row has few terms and levels are few.
  const std::int64_t reach = integers ? std::max<std::int64_t>(rows / 4, 1) : 1;
  for (std::int64_t row = 0; row < rows; ++row) {
    std::set<std::int64_t> columns;
    const std::int64_t last = integers ? row / reach * reach : row;             // a few levels
    if (shape == 0 && last > 0) columns.insert(integers ? last - 1 : row - 1);  // a chain
    if (shape >= 2 && last > 0 && (shape != 3 || below(3) == 0))
      for (std::int64_t i = below(integers ? 4 : 1 + std::min<std::int64_t>(last, 200)); i > 0; --i)
        columns.insert(below(last));
    for (const std::int64_t column : columns)
      matrix.entries.push_back(
          {static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(column),
           integers ? static_cast<double>(below(5) - 2)
                    : static_cast<double>(below(2001) - 1000) / 1000 / static_cast<double>(columns.size())});
    const double sign = random() % 2 == 0 ? 1 : -1;
    matrix.entries.push_back({static_cast<std::uint32_t>(row), static_cast<std::uint32_t>(row),
                              integers ? sign : sign * (1 + static_cast<double>(below(1000)) / 1000)});
  }
  return matrix;
}

Serial solve_serially(const Triangular& system, const std::vector<double>& right) {
  Serial serial{{}, system};
  for (std::size_t row = 0; row < right.size(); ++row) {
    long double sum = right[row];
    for (auto e = static_cast<std::size_t>(system.begin[row]); e < static_cast<std::size_t>(system.begin[row + 1]); ++e)
      sum -= static_cast<long double>(system.value[e]) * serial.solution[system.column[e]];
    serial.solution.push_back(sum / static_cast<long double>(system.diagonal[row]));
  }
  return serial;
}

std::vector<long double> Serial::distance(const std::vector<double>& found, long double unit) const {
  std::vector<long double> distances;
  for (std::size_t row = 0; row < found.size(); ++row) {
    const long double diagonal = std::abs(static_cast<long double>(system.diagonal[row]));
    long double size = diagonal * std::abs(static_cast<long double>(found[row])), carried = 0;
    const auto begin = static_cast<std::size_t>(system.begin[row]),
               end = static_cast<std::size_t>(system.begin[row + 1]);
    for (std::size_t e = begin; e < end; ++e) {
      const long double element = std::abs(static_cast<long double>(system.value[e]));
      size += element * std::abs(static_cast<long double>(found[system.column[e]]));
      carried += element * distances[system.column[e]];
    }
    // A tenth more for the serial solution's own roundings, which are 2^-11 of these.
    const auto roundings = static_cast<long double>(std::max<std::size_t>(end - begin, 2));
    distances.push_back(1.1L * (roundings * unit / (1 - roundings * unit) * size + 1e-300L + carried) / diagonal);
  }
  return distances;
}

}  // namespace imbrex::test
