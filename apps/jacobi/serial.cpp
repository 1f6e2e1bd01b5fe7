#include "apps/jacobi/serial.hpp"

#include <cmath>

#include "apps/jacobi/field.hpp"

namespace imbrex::apps::jacobi {

template <typename T>
Solution<T> solve_serially(std::int64_t rows, std::int64_t columns, std::uint64_t seed, std::int64_t sweeps,
                           std::int64_t every) {
  const std::int64_t width = columns + 2;
  Solution<T> solution{rows, columns, std::vector<T>(static_cast<std::size_t>((rows + 2) * width)), {}};
  std::vector<T>& old = solution.field;
  for (std::int64_t row = -1; row <= rows; ++row)
    for (std::int64_t column = -1; column <= columns; ++column)
      old[static_cast<std::size_t>((row + 1) * width + column + 1)] = first_value<T>(seed, row, column);
  std::vector<T> made = old;
  for (std::int64_t sweep = 1; sweep <= sweeps; ++sweep) {
    for (std::int64_t row = 1; row <= rows; ++row) {
      const T* here = old.data() + row * width;
      T* to = made.data() + row * width;
      for (std::int64_t c = 1; c <= columns; ++c) {
        const T vertical = here[c - width] + here[c + width], horizontal = here[c - 1] + here[c + 1];
        to[c] = (vertical + horizontal) * static_cast<T>(0.25);
      }
    }
    if (sweep % every == 0) {
      ExactSum sum = 0;
      for (std::int64_t row = 1; row <= rows; ++row)
        for (std::int64_t i = row * width + 1; i <= row * width + columns; ++i) {
          const T change = made[static_cast<std::size_t>(i)] - old[static_cast<std::size_t>(i)];
          sum += static_cast<ExactSum>(std::ldexp(static_cast<double>(std::abs(change)), 64));
        }
      solution.residuals.push_back(sum);
    }
    old.swap(made);
  }
  return solution;
}

template Solution<float> solve_serially<float>(std::int64_t, std::int64_t, std::uint64_t, std::int64_t, std::int64_t);
template Solution<double> solve_serially<double>(std::int64_t, std::int64_t, std::uint64_t, std::int64_t, std::int64_t);

double rounded(ExactSum sum) { return std::ldexp(static_cast<double>(sum), -64); }

}  // namespace imbrex::apps::jacobi
