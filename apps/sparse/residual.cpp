#include "apps/sparse/residual.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace imbrex::apps::sparse {
namespace {

long double growth(std::int64_t roundings, long double unit) {
  const long double all = static_cast<long double>(roundings) * unit;
  return all / (1 - all);
}

}  // namespace

template <typename T>
Residual worst_residual(const Triangular& system, const std::vector<T>& right, const std::vector<T>& solution,
                        std::int64_t columns, std::int64_t first, std::int64_t step) {
  constexpr long double unit = std::numeric_limits<T>::epsilon() / 2;
  constexpr long double check = std::numeric_limits<long double>::epsilon() / 2;
  constexpr long double largest = std::numeric_limits<T>::max();
  constexpr double infinity = std::numeric_limits<double>::infinity();
  constexpr long double smallest = std::numeric_limits<T>::denorm_min();
  Residual worst;
  for (std::int64_t row = first; row < system.rows; row += step) {
    const std::int64_t begin = system.begin[static_cast<std::size_t>(row)];
    const std::int64_t terms = system.begin[static_cast<std::size_t>(row) + 1] - begin;
    const long double diagonal = static_cast<T>(system.diagonal[static_cast<std::size_t>(row)]);
    for (std::int64_t column = 0; column < columns; ++column) {
      const auto at = [&](std::int64_t r) { return static_cast<std::size_t>(r * columns + column); };
      long double residual = right[at(row)], size = 0;
      bool from_finite = std::isfinite(right[at(row)]);
      const auto take = [&](long double element, std::int64_t from) {
        const long double product = element * static_cast<long double>(solution[at(from)]);
        residual -= product, size += std::abs(product);
      };
      for (std::int64_t e = begin; e < begin + terms; ++e) {
        const std::int64_t from = system.column[static_cast<std::size_t>(e)];
        from_finite = from_finite && std::isfinite(solution[at(from)]);
        take(static_cast<T>(system.value[static_cast<std::size_t>(e)]), from);
      }
      if (const T own = solution[at(row)]; !std::isfinite(own)) {
        // What is not finite goes on from row to row; the first one says whether that is right.
        const long double exact = residual / diagonal;
        if (!from_finite) continue;
        if (std::abs(exact) > largest || size > largest) {
          if (!worst.overflows && !(worst.over_bound > 1))
            worst = {infinity, static_cast<double>(own), 0, system.row_at(row), column, true};
          continue;
        }
      }
      take(diagonal, row);
      const long double own = growth(terms + 3, check) * (size + std::abs(static_cast<long double>(right[at(row)])));
      const long double bound = growth(std::max<std::int64_t>(terms, 2), unit) * size +
                                (static_cast<long double>(terms + 1) + std::abs(diagonal)) * smallest + own;
      auto over = static_cast<double>(std::abs(residual) / bound);
      if (!std::isfinite(over)) over = infinity;
      if (over > worst.over_bound || worst.row < 0 || (worst.overflows && over > 1))
        worst = {over, static_cast<double>(residual), static_cast<double>(bound), system.row_at(row), column, false};
    }
  }
  return worst;
}

template Residual worst_residual<float>(const Triangular&, const std::vector<float>&, const std::vector<float>&,
                                        std::int64_t, std::int64_t, std::int64_t);
template Residual worst_residual<double>(const Triangular&, const std::vector<double>&, const std::vector<double>&,
                                         std::int64_t, std::int64_t, std::int64_t);

}  // namespace imbrex::apps::sparse
