// Results compared with their reference: which rows of them, and how far they are from it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "program/reference.hpp"

namespace imbrex::program {
namespace {

double largest(Type type) {
  return type == Type::fp16   ? 65504.0
         : type == Type::bf16 ? 0x1.fep127
                              : static_cast<double>(std::numeric_limits<float>::max());
}

}  // namespace

std::vector<std::int64_t> compared_rows(std::int64_t rows, std::int64_t stride, std::uint64_t seed, int rank) {
  std::vector<std::int64_t> drawn;
  std::mt19937_64 random(seed * 0x9e3779b97f4a7c15u + static_cast<std::uint64_t>(rank));
  for (std::int64_t first = 0; first < rows; first += stride) {
    const auto count = static_cast<std::uint64_t>(std::min(stride, rows - first));
    drawn.push_back(first + static_cast<std::int64_t>(random() % count));
  }
  return drawn;
}

double error_over_bound(double result, double value, double bound, Type type) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  // An infinity of an operand has a bound that is none.
  if (result == value || (std::isnan(result) && std::isnan(value))) return 0;
  if (std::isnan(result) || std::isnan(value) || std::isinf(value)) return infinity;
  if (std::isinf(result))
    return std::signbit(result) == std::signbit(value) && std::abs(value) + bound >= largest(type) ? 0 : infinity;
  return std::abs(result - value) / bound;
}

Comparison compare(const Reference& reference, const std::vector<float>& result, Type type, std::int64_t cols) {
  Comparison worst;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const double value = reference.value[i], got = static_cast<double>(result[i]);
    const double ratio = error_over_bound(got, value, reference.bound[i], type);
    if (ratio > worst.worst || (i == 0 && ratio >= worst.worst)) {
      const auto at = static_cast<std::int64_t>(i);
      worst = {ratio, at / cols, at % cols, got, value};
    }
  }
  return worst;
}

Comparison compare(const Reference& reference, const std::vector<float>& result, Type type, std::int64_t cols,
                   const std::vector<std::int64_t>& rows) {
  std::vector<float> asked;
  asked.reserve(rows.size() * static_cast<std::size_t>(cols));
  for (const std::int64_t row : rows)
    asked.insert(asked.end(), result.begin() + row * cols, result.begin() + (row + 1) * cols);
  Comparison worst = compare(reference, asked, type, cols);
  if (!rows.empty()) worst.row = rows[static_cast<std::size_t>(worst.row)];
  return worst;
}

}  // namespace imbrex::program
