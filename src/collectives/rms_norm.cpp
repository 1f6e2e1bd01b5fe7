#include "collectives/rms_norm.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/check.hpp"
#include "collectives/all_reduce.hpp"

namespace imbrex {

void validate(const AllReduceRmsNormOptions& options, std::int64_t max_rows, std::int64_t hidden) {
  IMBREX_EXPECTS(hidden >= 1 && hidden <= collectives::most_hidden,
                 "all_reduce_rms_norm: hidden = {}: it must be from 1 to {}", hidden, collectives::most_hidden);
  IMBREX_EXPECTS(max_rows >= 0 && max_rows <= (std::int64_t{1} << 40) / hidden,
                 "all_reduce_rms_norm: max_rows = {}: it must not be negative, nor max_rows * hidden above 2^40",
                 max_rows);
  IMBREX_EXPECTS(std::isfinite(options.eps) && options.eps >= 0,
                 "all_reduce_rms_norm: eps = {}: it must be finite and not negative", options.eps);
  IMBREX_EXPECTS(options.algorithm != AllReduceAlgorithm::ring,
                 "all_reduce_rms_norm: algorithm ring is there to compare codecs with; it must be auto, one_shot or "
                 "two_shot");
  IMBREX_EXPECTS(options.ctas >= 0 && options.ctas <= collectives::most_ctas,
                 "all_reduce_rms_norm: ctas = {}: it must be from 0 to {}", options.ctas, collectives::most_ctas);
}

namespace collectives {

void expect_weight_type(std::optional<Type> wanted, Type type) {
  IMBREX_EXPECTS(!wanted || *wanted == type || *wanted == Type::fp32,
                 "all_reduce_rms_norm: weight_type = {}: it must be fp32, or that of the rows, {}", name_of(*wanted),
                 name_of(type));
}

float squares_of(const float* row, std::int64_t hidden, Type type) {
  const RowShape shape = row_shape(hidden, type);
  std::array<float, most_row_threads> sums{};
  for (std::uint32_t q = 0; q < shape.packets; ++q) {
    float& sum = sums[q % shape.threads];
    const std::int64_t first = std::int64_t{q} * shape.elements;
    for (std::int64_t i = first; i < std::min(first + shape.elements, hidden); ++i) sum = add_square(sum, row[i]);
  }
  float total = 0;
  for (std::uint32_t warp = 0; warp < shape.threads; warp += 32) {
    for (std::uint32_t distance = 16; distance > 0; distance /= 2)
      for (std::uint32_t lane = 0; lane < distance; ++lane) sums[warp + lane] += sums[warp + lane + distance];
    total = warp == 0 ? sums[0] : total + sums[warp];
  }
  return total;
}

void agree(World& world, std::int64_t max_rows, std::int64_t hidden, Type type,
           const AllReduceRmsNormOptions& options) {
  runtime::agree(world, [&] {
    validate(options, max_rows, hidden);
    expect_type("all_reduce_rms_norm", type);
    expect_weight_type(options.weight_type, type);
    const auto& [eps, algorithm, ctas, weight_type] = options;
    runtime::Terms terms("an all_reduce_rms_norm");
    terms.add("max_rows", max_rows).add("hidden", hidden).add("type", name_of(type)).add("eps", eps);
    terms.add("algorithm", name_of(algorithm)).add("ctas", ctas);
    return terms.add("weight_type", name_of(weight_type.value_or(type)));
  });
}

void expect_operands(const collectives::RmsNormOperands& o, std::int64_t rows, std::int64_t max_rows,
                     std::int64_t hidden, Type type) {
  IMBREX_EXPECTS(rows >= 0 && rows <= max_rows, "all_reduce_rms_norm: rows = {}: it must be from 0 to {}", rows,
                 max_rows);
  if (rows == 0) return;
  struct Operand {
    const void* first;
    std::string_view name;
    std::size_t count;
    bool needed;
    std::size_t element;

    std::size_t bytes() const { return count * element; }
  };
  const std::size_t element = size_of(type), row = static_cast<std::size_t>(hidden),
                    all = static_cast<std::size_t>(rows) * row;
  const Operand inputs[] = {{o.in, "in", all, true, element},
                            {o.residual, "residual", all, false, element},
                            {o.weight, "weight", row, true, size_of(o.weight_type.value_or(type))}};
  const Operand outputs[] = {{o.residual_out, "residual_out", all, true, element}, {o.out, "out", all, true, element}};
  const auto expect_sound = [&](const Operand& p) {
    IMBREX_EXPECTS(p.first != nullptr || !p.needed, "all_reduce_rms_norm: {} is null", p.name);
    IMBREX_EXPECTS(reinterpret_cast<std::uintptr_t>(p.first) % p.element == 0,
                   "all_reduce_rms_norm: {} at {} is not aligned to an element of {} bytes", p.name, p.first,
                   p.element);
  };
  const auto overlap = [](const Operand& a, const Operand& b) {
    const auto x = reinterpret_cast<std::uintptr_t>(a.first), y = reinterpret_cast<std::uintptr_t>(b.first);
    return b.first != nullptr && x < y + b.bytes() && y < x + a.bytes();
  };
  for (const Operand& input : inputs) expect_sound(input);
  for (const Operand& output : outputs) {
    expect_sound(output);
    for (const Operand& input : inputs)
      IMBREX_EXPECTS(!overlap(output, input) || (output.first == input.first && input.name != "weight"),
                     "all_reduce_rms_norm: {} at {} overlaps {} at {}: they must be apart{}", output.name, output.first,
                     input.name, input.first, input.name == "weight" ? "" : ", or the same");
  }
  IMBREX_EXPECTS(!overlap(outputs[0], outputs[1]),
                 "all_reduce_rms_norm: out at {} overlaps residual_out at {}: they must be apart", o.out,
                 o.residual_out);
}

AllReduceAlgorithm choose(const AllReduceRmsNormOptions& options, std::int64_t rows, std::int64_t hidden, Type type,
                          std::int64_t one_shot_bytes) {
  AllReduceOptions plain;
  plain.algorithm = options.algorithm;
  return choose(plain, rows * hidden, type, Sizes{one_shot_bytes});
}

}  // namespace collectives
}  // namespace imbrex
