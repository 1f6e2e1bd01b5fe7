#include "collectives/rms_norm_case.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/convert.hpp"
#include "collectives/rms_norm.hpp"

namespace imbrex::test {
namespace {

std::vector<std::byte> elements(Type type, const std::vector<float>& values) {
  std::vector<std::byte> bytes(values.size() * size_of(type));
  from_float(type, values.data(), bytes.data(), std::ssize(values));
  return bytes;
}

std::vector<float> floats(Type type, const std::vector<std::byte>& bytes) {
  std::vector<float> values(bytes.size() / size_of(type));
  to_float(type, bytes.data(), values.data(), std::ssize(values));
  return values;
}

double half_denormal(Type type) { return type == Type::fp16 ? 0x1p-25 : type == Type::bf16 ? 0x1p-134 : 0x1p-150; }

/// One row's squares, and how far a right result may lie from float64's, relatively. Terms, in their order: a thread's
/// sums of products, a warp's five, the warps'; the mean, eps, the root and the quotient each round once. Higham,
/// "Accuracy and Stability of Numerical Algorithms", 2002, section 3.1.
struct Norm {
  double scale = 0, error = 0;
  bool overflows = false, nearly = false, nan = false;

  Norm(const RmsNormCase& c, const float* row) {
    double squares = 0;
    for (std::int64_t i = 0; i < c.hidden; ++i) {
      nan |= std::isnan(row[i]);
      squares += static_cast<double>(row[i]) * static_cast<double>(row[i]);
    }
    constexpr double u = 0x1p-24, largest = static_cast<double>(std::numeric_limits<float>::max());
    const collectives::RowShape shape = collectives::row_shape(c.hidden, c.type);
    const double terms = shape.batches * shape.elements + 6 + shape.threads / 32;
    overflows = squares > largest;
    nearly = squares > 0.99 * largest && squares < 1.01 * largest;
    const double mean = squares / static_cast<double>(c.hidden) + static_cast<double>(c.eps);
    scale = 1 / std::sqrt(mean);
    error = 0.5 * (terms * u / (1 - terms * u) + 2 * u + 0x1p-149 / mean) + 2 * u;
  }
};

}  // namespace

std::string RmsNormCase::text() const {
  return fmt::format("{} x {} {}{}{}, eps {}", rows, hidden, name_of(type), residual ? "" : " without residual",
                     hostile ? " hostile" : "", eps);
}

RmsNormData rms_norm_data(const RmsNormCase& c, int ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const float infinity = std::numeric_limits<float>::infinity();
  const float hostile[] = {std::nanf(""), infinity, -infinity, 65504.0f, 3e38f, -1e-40f, 0.0f, -0.0f, 2e19f};
  const auto matrix = [&](std::int64_t count, bool with_hostile) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) v = normal(random);
    // Some rows only: the others are normalised beside them.
    for (std::uint64_t i = 0; with_hostile && count > 0 && i < 1 + static_cast<std::uint64_t>(c.rows) / 2; ++i)
      values[random() % values.size()] = hostile[random() % std::size(hostile)];
    return elements(c.type, values);
  };
  RmsNormData data;
  for (int rank = 0; rank < ranks; ++rank) data.in.push_back(matrix(c.count(), c.hostile));
  data.residual = matrix(c.residual ? c.count() : 0, c.hostile);
  data.weight = matrix(c.hidden, false);
  return data;
}

std::string rms_norm_fault(const RmsNormCase& c, const RmsNormData& data, const std::vector<std::byte>& residual_out,
                           const std::vector<std::byte>& out) {
  std::vector<float> sums = floats(c.type, data.in[0]);
  const auto add = [&](const std::vector<std::byte>& part) {
    const std::vector<float> values = floats(c.type, part);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
  };
  for (std::size_t rank = 1; rank < data.in.size(); ++rank) add(data.in[rank]);
  if (c.residual) add(data.residual);
  if (const std::int64_t at = first_different(c.type, elements(c.type, sums), residual_out); at >= 0)
    return fmt::format("residual_out: row {}, element {} is not the rounded sum", at / c.hidden, at % c.hidden);
  const std::vector<float> x = floats(c.type, residual_out), weight = floats(c.type, data.weight),
                           got = floats(c.type, out);
  constexpr double u = 0x1p-24;
  const double u_type = unit_roundoff(c.type), largest = c.type == Type::fp16 ? 65504.0 : 3e38;
  for (std::int64_t row = 0; row < c.rows; ++row) {
    const Norm norm(c, x.data() + row * c.hidden);
    if (norm.nearly) continue;
    for (std::int64_t i = 0; i < c.hidden; ++i) {
      const auto at = static_cast<std::size_t>(row * c.hidden + i);
      const double w = static_cast<double>(weight[static_cast<std::size_t>(i)]), y = static_cast<double>(got[at]);
      const auto wrong = [&](double want) {
        return fmt::format("out: row {}, element {} is {}, not {}", row, i, y, want);
      };
      if (norm.nan || (norm.overflows && std::isinf(x[at]))) {
        if (!std::isnan(y)) return wrong(std::nan(""));
        continue;
      }
      // Squares beyond fp32 leave nothing of their row.
      const double want = norm.overflows ? 0 : static_cast<double>(x[at]) * norm.scale * w;
      const double error = std::fabs(want) * (norm.error + 2 * u) * 1.01 + (std::fabs(w) + 1) * 0x1p-150;
      const double bound = error + u_type * (std::fabs(want) + error) + half_denormal(c.type);
      if (std::isinf(y) && std::fabs(want) + bound >= largest) continue;
      if (!(std::fabs(y - want) <= bound)) return wrong(want);
    }
  }
  return {};
}

std::int64_t first_different(Type type, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  const std::vector<float> x = floats(type, a), y = floats(type, b);
  if (x.size() != y.size()) return 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (std::memcmp(&x[i], &y[i], sizeof(float)) != 0 && !(std::isnan(x[i]) && std::isnan(y[i])))
      return static_cast<std::int64_t>(i);
  return -1;
}

}  // namespace imbrex::test
