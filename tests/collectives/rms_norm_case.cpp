#include "collectives/rms_norm_case.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "base/convert.hpp"
#include "program/all_reduce/rms_norm_reference.hpp"

namespace imbrex::test {

using base::elements_of;
using base::floats_of;

std::string RmsNormCase::text() const {
  return fmt::format("{} x {} {}{}{}, eps {}, {} weight", rows, hidden, name_of(type),
                     residual ? "" : " without residual", hostile ? " hostile" : "", eps, name_of(weight()));
}

RmsNormData rms_norm_data(const RmsNormCase& c, int ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const float infinity = std::numeric_limits<float>::infinity();
  const float hostile[] = {std::nanf(""), infinity, -infinity, 65504.0f, 3e38f, -1e-40f, 0.0f, -0.0f, 2e19f};
  const auto matrix = [&](std::int64_t count, bool with_hostile, Type type) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) v = normal(random);
    // Some rows only: the others are normalised in the same call.
    for (std::uint64_t i = 0; with_hostile && count > 0 && i < 1 + static_cast<std::uint64_t>(c.rows) / 2; ++i)
      values[random() % values.size()] = hostile[random() % std::size(hostile)];
    return elements_of(type, values);
  };
  RmsNormData data;
  for (int rank = 0; rank < ranks; ++rank) data.in.push_back(matrix(c.count(), c.hostile, c.type));
  data.residual = matrix(c.residual ? c.count() : 0, c.hostile, c.type);
  data.weight = matrix(c.hidden, false, c.weight());
  return data;
}

std::string rms_norm_fault(const RmsNormCase& c, const RmsNormData& data, const std::vector<std::byte>& residual_out,
                           const std::vector<std::byte>& out) {
  std::vector<float> sums = floats_of(c.type, data.in[0]);
  const auto add = [&](const std::vector<std::byte>& part) {
    const std::vector<float> values = floats_of(c.type, part);
    for (std::size_t i = 0; i < values.size(); ++i) sums[i] += values[i];
  };
  for (std::size_t rank = 1; rank < data.in.size(); ++rank) add(data.in[rank]);
  if (c.residual) add(data.residual);
  if (const std::int64_t at = first_different(c.type, elements_of(c.type, sums), residual_out); at >= 0)
    return fmt::format("residual_out: row {}, element {} is not the rounded sum", at / c.hidden, at % c.hidden);
  const std::vector<float> x = floats_of(c.type, residual_out);
  const program::Comparison worst =
      program::compare(program::norm_reference(x, c.hidden, floats_of(c.weight(), data.weight), c.eps, c.type),
                       floats_of(c.type, out), c.type, c.hidden);
  if (worst.worst <= 1) return {};
  return fmt::format("out: row {}, element {} is {}, not {}: {} times its bound", worst.row, worst.col, worst.result,
                     worst.value, worst.worst);
}

std::int64_t first_different(Type type, const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
  const std::vector<float> x = floats_of(type, a), y = floats_of(type, b);
  if (x.size() != y.size()) return 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (std::memcmp(&x[i], &y[i], sizeof(float)) != 0 && !(std::isnan(x[i]) && std::isnan(y[i])))
      return static_cast<std::int64_t>(i);
  return -1;
}

}  // namespace imbrex::test
