#include "all_reduce/reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/convert.hpp"

namespace imbrex {

void Errors::add(const Errors& other) {
  largest = std::max(largest, other.largest);
  noise += other.noise;
  signal += other.signal;
}

double Errors::sqnr_db() const { return 10 * std::log10(signal / noise); }

Reference::Reference(Type type, int ranks)
    : type_(type),
      bits_(test::expected_stretch(type, ranks, 1, false)),
      sums_(static_cast<std::size_t>(test::reduce_period)) {
  std::vector<float> part(sums_.size());
  for (int rank = 0; rank < ranks; ++rank) {
    base::to_float(type_, test::input_stretch(type_, rank, 1, false).data(), part.data(), std::ssize(part));
    std::transform(part.begin(), part.end(), sums_.begin(), sums_.begin(),
                   [](float p, double sum) { return sum + static_cast<double>(p); });
  }
}

Errors Reference::errors(const std::byte* got, std::int64_t count) const {
  Errors e;
  std::vector<float> values(sums_.size());
  for (std::int64_t first = 0; first < count; first += std::ssize(sums_)) {
    const std::int64_t n = std::min(std::ssize(sums_), count - first);
    base::to_float(type_, got + static_cast<std::size_t>(first) * size_of(type_), values.data(), n);
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      const double error = std::fabs(static_cast<double>(values[i]) - sums_[i]);
      e.largest = std::max(e.largest, std::isnan(error) ? std::numeric_limits<double>::infinity() : error);
      e.noise += error * error;
      e.signal += sums_[i] * sums_[i];
    }
  }
  return e;
}

}  // namespace imbrex
