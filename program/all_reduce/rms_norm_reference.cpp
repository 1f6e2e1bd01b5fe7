#include "program/all_reduce/rms_norm_reference.hpp"

#include <cmath>
#include <limits>

#include "collectives/rms_norm.hpp"

namespace imbrex::program {
namespace {

constexpr double u = 0x1p-24;

double half_denormal(Type type) { return type == Type::fp16 ? 0x1p-25 : type == Type::bf16 ? 0x1p-134 : 0x1p-150; }

}  // namespace

Reference residual_reference(const std::vector<std::vector<float>>& terms, Type type) {
  const std::size_t count = terms.front().size();
  Reference ref{std::vector<double>(count), std::vector<double>(count)};
  const double n = static_cast<double>(terms.size()) * u, g = n / (1 - n);
  for (const std::vector<float>& term : terms)
    for (std::size_t i = 0; i < count; ++i) {
      ref.value[i] += static_cast<double>(term[i]);
      ref.bound[i] += g * std::abs(static_cast<double>(term[i]));
    }
  for (std::size_t i = 0; i < count; ++i)
    ref.bound[i] += unit_roundoff(type) * (std::abs(ref.value[i]) + ref.bound[i]) + half_denormal(type);
  return ref;
}

Reference norm_reference(const std::vector<float>& x, std::int64_t hidden, const std::vector<float>& weight, float eps,
                         Type type) {
  constexpr double largest = static_cast<double>(std::numeric_limits<float>::max());
  Reference ref{std::vector<double>(x.size()), std::vector<double>(x.size())};
  const auto row_size = static_cast<std::size_t>(hidden);
  const collectives::RowShape shape = collectives::row_shape(hidden, type);
  const double t = shape.batches * shape.elements + 6 + shape.threads / 32;
  for (std::size_t first = 0; first < x.size(); first += row_size) {
    double squares = 0;
    for (std::size_t i = first; i < first + row_size; ++i)
      squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    const bool overflows = squares > largest, uncertain = squares > 0.99 * largest && squares < 1.01 * largest;
    const double mean = squares / static_cast<double>(hidden) + static_cast<double>(eps),
                 scale = overflows ? 0 : 1 / std::sqrt(mean),
                 error = 0.5 * (t * u / (1 - t * u) + 2 * u + 0x1p-149 / mean) + 4 * u;
    for (std::size_t i = 0; i < row_size; ++i) {
      const double w = static_cast<double>(weight[i]), value = static_cast<double>(x[first + i]) * scale * w,
                   lost = std::abs(value) * error * 1.01 + (std::abs(w) + 1) * 0x1p-150;
      ref.value[first + i] = value;
      ref.bound[first + i] = uncertain ? std::numeric_limits<double>::infinity()
                                       : lost + unit_roundoff(type) * (std::abs(value) + lost) + half_denormal(type);
    }
  }
  return ref;
}

}  // namespace imbrex::program
