#include "embedding/lookup.hpp"

#include <algorithm>
#include <cmath>

#include "embedding/rows.hpp"

namespace imbrex::embedding {

std::int64_t pool(const Tables& tables, const Bags& bags, std::int32_t t, std::int64_t b, float* sums) {
  const Table& table = tables.tables[t];
  const std::int64_t begin = index_at(bags.offsets, bags.type, t * bags.batch + b);
  const std::int64_t end = index_at(bags.offsets, bags.type, t * bags.batch + b + 1);
  float row[most_dim];
  std::int64_t added = 0;
  std::fill_n(sums, table.dim, 0.0f);
  for (std::int64_t k = begin; k < end; ++k) {
    const std::int64_t index = index_at(bags.indices, bags.type, k);
    if (index < 0 || index >= table.count) continue;
    read_row(table, tables.type, index, row);
    if (bags.weights == nullptr)
      for (std::int32_t i = 0; i < table.dim; ++i) sums[i] += row[i];
    else
      for (std::int32_t i = 0; i < table.dim; ++i) sums[i] = codec::multiply_add(bags.weights[k], row[i], sums[i]);
    ++added;
  }
  if (bags.pooling == Pooling::mean && added > 0) {
    const float share = 1.0f / static_cast<float>(added);
    for (std::int32_t i = 0; i < table.dim; ++i) sums[i] *= share;
  }
  return end - begin - added;
}

std::int64_t look_up(const Tables& tables, const Bags& bags, const Output& output, const Part& part) {
  const std::int64_t part_rows = bags.batch / output.ranks;
  const auto element = static_cast<std::int64_t>(size_of(output.type));
  float sums[most_dim];
  std::int64_t ignored = 0;
  for (std::int32_t t = part.table_begin; t < part.table_end; ++t) {
    const Table& table = tables.tables[t];
    for (std::int64_t b = part.row_begin; b < part.row_end; ++b) {
      ignored += pool(tables, bags, t, b, sums);
      std::byte* to = static_cast<std::byte*>(output.parts[b / part_rows]) +
                      (b % part_rows * output.pitch + table.column) * element;
      base::from_float(output.type, sums, to, table.dim);
    }
  }
  return ignored;
}

std::vector<Bounded> reference(const Tables& tables, const Bags& bags, Type output, std::int32_t t, std::int64_t b) {
  const Table& table = tables.tables[t];
  const auto dim = static_cast<std::size_t>(table.dim);
  std::vector<double> sums(dim, 0.0), magnitudes(dim, 0.0);
  double added = 0;
  const std::int64_t end = index_at(bags.offsets, bags.type, t * bags.batch + b + 1);
  for (std::int64_t k = index_at(bags.offsets, bags.type, t * bags.batch + b); k < end; ++k) {
    const std::int64_t index = index_at(bags.indices, bags.type, k);
    if (index < 0 || index >= table.count) continue;
    const std::byte* at = static_cast<const std::byte*>(table.rows) + index * table.pitch;
    const double weight = bags.weights == nullptr ? 1.0 : static_cast<double>(bags.weights[k]);
    float row[most_dim], scale_and_bias[2] = {1.0f, 0.0f};
    if (tables.type == TableRows::int8)
      std::memcpy(scale_and_bias, at + table.scale, sizeof scale_and_bias);
    else
      read_row(table, tables.type, index, row);
    for (std::size_t i = 0; i < dim; ++i) {
      const double value = tables.type == TableRows::int8
                               ? double{scale_and_bias[0]} * std::to_integer<int>(at[i]) + double{scale_and_bias[1]}
                               : double{row[i]};
      sums[i] += weight * value;
      magnitudes[i] += std::abs(weight * value);
    }
    added += 1;
  }
  const double share = bags.pooling == Pooling::mean && added > 0 ? 1 / added : 1;
  const double roundings = (added + 4) * 0x1p-24, sum_bound = roundings / (1 - roundings);
  const double least = output == Type::fp16 ? 0x1p-24 : output == Type::bf16 ? 0x1p-133 : 0x1p-149;
  std::vector<Bounded> bounded(dim);
  for (std::size_t i = 0; i < dim; ++i) {
    const double value = sums[i] * share, error = sum_bound * magnitudes[i] * share;
    bounded[i] = {value, error + std::max(unit_roundoff(output) * (std::abs(value) + error), least / 2)};
  }
  return bounded;
}

}  // namespace imbrex::embedding
