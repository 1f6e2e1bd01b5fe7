#include "program/card/least_squares.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

namespace imbrex::program {
namespace {

using Row = std::vector<double>;

double product(const Row& x, const Row& y) { return std::inner_product(x.begin(), x.end(), y.begin(), 0.0); }

// By Gauss, with pivots. A matrix that is no good leaves zeros.
Row solved(std::vector<Row> matrix, Row right) {
  const std::size_t count = right.size();
  for (std::size_t i = 0; i < count; ++i) {
    std::size_t pivot = i;
    for (std::size_t r = i + 1; r < count; ++r)
      if (std::abs(matrix[r][i]) > std::abs(matrix[pivot][i])) pivot = r;
    std::swap(matrix[i], matrix[pivot]);
    std::swap(right[i], right[pivot]);
    if (std::abs(matrix[i][i]) < 1e-300) return Row(count, 0);
    for (std::size_t r = i + 1; r < count; ++r) {
      const double factor = matrix[r][i] / matrix[i][i];
      for (std::size_t c = i; c < count; ++c) matrix[r][c] -= factor * matrix[i][c];
      right[r] -= factor * right[i];
    }
  }
  for (std::size_t i = count; i-- > 0;) {
    for (std::size_t c = i + 1; c < count; ++c) right[i] -= matrix[i][c] * right[c];
    right[i] /= matrix[i][i];
  }
  return right;
}

}  // namespace

void fit(std::vector<Unknown>& unknowns, const std::function<std::vector<double>(const std::vector<Unknown>&)>& errors,
         int rounds) {
  constexpr double difference = 0.03, longest = 0.7;
  const auto moved = [&](const Unknown& of, double by) {
    Unknown there = of;
    there.value = std::clamp(of.value * std::exp(by), of.least, of.most);
    return there;
  };
  for (Unknown& u : unknowns) u = moved(u, 0);
  Row found = errors(unknowns);
  double damping = 1e-3;
  for (int round = 0; round < rounds; ++round) {
    std::vector<Row> slopes;
    for (std::size_t i = 0; i < unknowns.size(); ++i) {
      std::vector<Unknown> there = unknowns;
      const double step = unknowns[i].value * std::exp(difference) > unknowns[i].most ? -difference : difference;
      there[i] = moved(unknowns[i], step);
      Row slope = errors(there);
      for (std::size_t r = 0; r < slope.size(); ++r) slope[r] = (slope[r] - found[r]) / step;
      slopes.push_back(std::move(slope));
    }
    const double before = product(found, found);
    double mean = 0;
    for (const Row& s : slopes) mean += product(s, s) / static_cast<double>(slopes.size());
    double gain = 0;
    for (int trial = 0; trial < 8 && gain <= 0; ++trial, damping = std::min(damping * 4, 1e3)) {
      std::vector<Row> normal(slopes.size(), Row(slopes.size()));
      Row right(slopes.size());
      for (std::size_t i = 0; i < slopes.size(); ++i) {
        for (std::size_t j = 0; j < slopes.size(); ++j) normal[i][j] = product(slopes[i], slopes[j]);
        // What no row tells apart stays where it is.
        normal[i][i] += damping * (normal[i][i] + mean);
        right[i] = -product(slopes[i], found);
      }
      const Row change = solved(std::move(normal), std::move(right));
      std::vector<Unknown> there = unknowns;
      for (std::size_t i = 0; i < there.size(); ++i)
        there[i] = moved(unknowns[i], std::clamp(change[i], -longest, longest));
      Row left = errors(there);
      const double after = product(left, left);
      if (!(after < before)) continue;
      gain = 1 - after / before;
      unknowns = std::move(there);
      found = std::move(left);
      damping = std::max(damping / 16, 1e-9);
    }
    if (gain < 1e-3) return;
  }
}

}  // namespace imbrex::program
