#include "support/packed_case.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/convert.hpp"
#include "program/all_reduce/rms_norm_reference.hpp"

namespace imbrex::test {

using base::elements_of, base::floats_of;

namespace {

std::size_t size(std::int64_t i) { return static_cast<std::size_t>(i); }

std::vector<std::byte> normal_values(std::mt19937_64& random, std::int64_t count, Type type) {
  std::normal_distribution<float> normal;
  std::vector<float> values(size(count));
  for (float& v : values) v = normal(random);
  return elements_of(type, values);
}

}  // namespace

void PackedCase::make() {
  std::mt19937_64 random(seed);
  const std::int64_t across = cols / block_cols, down = (rows + block_rows - 1) / block_rows;
  std::vector<std::int64_t> order(size(across * down));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  first_rows.assign(order.size(), 0);
  std::int64_t next = 0;
  for (const std::int64_t block : order) {
    first_rows[size(block)] = static_cast<std::int32_t>(next);
    next += std::min(block_rows, rows - block / across * block_rows);
  }
  packed = normal_values(random, rows * cols, type);
  residual_values = normal_values(random, residual ? rows * cols : 0, type);
  weight = normal_values(random, operation == RowOperation::rms_norm ? cols : 0, type);
  bias_values = normal_values(random, bias ? cols : 0, type);
}

PackedLayout PackedCase::layout(Device device) const {
  return {rows, cols, block_rows, block_cols, first_rows.data(), device};
}

std::vector<std::byte> PackedCase::rows_of_in() const {
  const std::size_t element = size_of(type);
  std::vector<std::byte> all(packed.size());
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t col = 0; col < cols; ++col) {
      const std::int64_t block = row / block_rows * (cols / block_cols) + col / block_cols;
      const std::int64_t from = (first_rows[size(block)] + row % block_rows) * block_cols + col % block_cols;
      std::memcpy(all.data() + size(row * cols + col) * element, packed.data() + size(from) * element, element);
    }
  return all;
}

std::string PackedCase::text() const {
  return fmt::format("{} of {} x {} {} in blocks of {} x {}{}{}, eps {}, seed {}", name_of(operation), rows, cols,
                     name_of(type), block_rows, block_cols, residual ? " with residual" : "", bias ? " with bias" : "",
                     eps, seed);
}

PackedCase random_packed_case(std::mt19937_64& random, std::int64_t columns) {
  const auto up_to = [&](std::int64_t most) { return 1 + static_cast<std::int64_t>(random() % size(most)); };
  PackedCase c;
  c.operation = static_cast<RowOperation>(random() % 4);
  constexpr Type types[] = {Type::bf16, Type::fp16, Type::fp32};
  c.type = types[random() % 3];
  const bool halves = c.operation == RowOperation::silu_multiply;
  c.rows = up_to(40);
  c.block_rows = up_to(20);
  c.block_cols = columns * up_to(random() % 8 == 0 ? 600 : 20);
  c.cols = c.block_cols * up_to(6);
  if (halves && c.cols / columns % 2 != 0) c.cols *= 2;
  c.residual = c.operation == RowOperation::rms_norm && random() % 2 == 0;
  c.bias = (halves || c.operation == RowOperation::gelu) && random() % 2 == 0;
  c.eps = random() % 2 == 0 ? 1e-6f : 0.5f;
  c.seed = random();
  c.make();
  return c;
}

void host_call(const PackedCase& c, const PackedLayout& layout, std::vector<Operand> operands) {
  put_back(c.operation, layout, operands, c.eps);
}

PackedResult put_back_case(const PackedCase& c, const PutBackCall& call, bool in_rows) {
  std::vector<std::byte> in = in_rows ? c.rows_of_in() : c.packed;
  PackedResult result{std::vector<std::byte>(size(c.rows * c.out_cols()) * size_of(c.type)),
                      std::vector<std::byte>(c.residual_values.size())};
  const auto matrix = [&](const std::vector<std::byte>& values, std::int64_t cols) {
    return View::matrix(values.data(), c.type, static_cast<std::int64_t>(values.size() / size_of(c.type)) / cols, cols);
  };
  std::vector<Operand> operands{{"in", matrix(in, in_rows ? c.cols : c.block_cols)}};
  if (c.residual) operands.push_back({"residual", matrix(c.residual_values, c.cols)});
  if (!c.weight.empty()) operands.push_back({"weight", matrix(c.weight, c.cols)});
  if (c.bias) operands.push_back({"bias", matrix(c.bias_values, c.cols)});
  if (c.residual) operands.push_back({"residual_out", matrix(result.residual_out, c.cols)});
  operands.push_back({"out", matrix(result.out, c.out_cols())});
  call(c, in_rows ? PackedLayout::in_rows(c.rows, c.cols, Device::cpu) : c.layout(Device::cpu), std::move(operands));
  return result;
}

std::string fault_of(const PackedCase& c, const PackedResult& result) {
  std::vector<float> x = floats_of(c.type, c.rows_of_in());
  const std::vector<float> got = floats_of(c.type, result.out);
  const auto told = [&](std::int64_t row, std::int64_t col, double is, double wanted) {
    return fmt::format("row {}, column {} is {}, not {}", row, col, is, wanted);
  };
  if (c.operation == RowOperation::copy)
    return result.out == c.rows_of_in() ? std::string() : std::string("the copy differs");
  if (c.operation == RowOperation::rms_norm) {
    const std::vector<float> residual = floats_of(c.type, c.residual_values);
    for (std::size_t i = 0; i < residual.size(); ++i) x[i] += residual[i];
    if (c.residual && elements_of(c.type, x) != result.residual_out) return "residual_out is not the rounded sum";
    if (c.residual) x = floats_of(c.type, result.residual_out);
    const program::Comparison worst = program::compare(
        program::norm_reference(x, c.cols, floats_of(c.type, c.weight), c.eps, c.type), got, c.type, c.cols);
    return worst.worst <= 1 ? std::string() : told(worst.row, worst.col, worst.result, worst.value);
  }
  // The sum and a product are rounded once each, exp and erf are off by two units at most, what they are put into a
  // few times more by one: eight units of fp32 of the largest term, and a rounding to the type.
  const std::vector<float> bias = floats_of(c.type, c.bias_values);
  const std::int64_t wide = c.out_cols();
  const double fine = 8 * unit_roundoff(Type::fp32), coarse = unit_roundoff(c.type);
  const double least = c.type == Type::fp16 ? std::ldexp(1.0, -25) : 1e-37;  // half of fp16's smallest number
  for (std::int64_t row = 0; row < c.rows; ++row)
    for (std::int64_t col = 0; col < wide; ++col) {
      const auto value = [&](std::int64_t at) {
        return static_cast<double>(x[size(row * c.cols + at)]) + (c.bias ? static_cast<double>(bias[size(at)]) : 0.0);
      };
      // What the sum with the bias is off by.
      const auto off = [&](std::int64_t at) { return c.bias ? std::fabs(value(at)) * unit_roundoff(Type::fp32) : 0.0; };
      const double v = value(col);
      double wanted = 0, bound = 0;
      if (c.operation == RowOperation::gelu) {
        wanted = 0.5 * v * (1 + std::erf(v / std::sqrt(2.0)));
        // Where 1 + erf is small, it is off by units of 1.
        bound = std::fabs(v) * fine + 1.2 * off(col);
      } else {
        const double up = value(col + wide), silu = v / (1 + std::exp(-v));
        wanted = silu * up;
        bound = std::fabs(wanted) * (1 + std::fabs(v)) * fine + 1.2 * off(col) * std::fabs(up) +
                std::fabs(silu) * off(col + wide);
      }
      bound += std::fabs(wanted) * coarse + coarse * bound + least;
      const double is = got[size(row * wide + col)];
      if (!(std::fabs(is - wanted) <= bound)) return told(row, col, is, wanted);
    }
  return {};
}

}  // namespace imbrex::test
