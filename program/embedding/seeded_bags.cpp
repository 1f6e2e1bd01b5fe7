#include "program/embedding/seeded_bags.hpp"

#include <array>
#include <cstring>

#include "base/check.hpp"
#include "base/convert.hpp"
#include "embedding/rows.hpp"

namespace imbrex::program {
namespace {

using namespace embedding;

enum Kind : std::uint64_t { element = 1, length, index, weight_of, gradient_of };

// splitmix64, by what a number is of.
std::uint64_t mixed(std::uint64_t seed, Kind kind, std::int64_t a, std::int64_t b, std::int64_t c) {
  std::uint64_t x = seed;
  for (const std::uint64_t part : {static_cast<std::uint64_t>(kind), static_cast<std::uint64_t>(a),
                                   static_cast<std::uint64_t>(b), static_cast<std::uint64_t>(c)}) {
    x = (x ^ part) + 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
  }
  return x;
}

// From -1 to 1, in steps of 2^-23.
float uniform(std::uint64_t number) { return static_cast<float>(number >> 40) * 0x1p-23f - 1.0f; }

void append(std::vector<std::byte>& numbers, IndexType type, std::int64_t value) {
  const auto small = static_cast<std::int32_t>(value);
  const auto* from = type == IndexType::int32 ? reinterpret_cast<const std::byte*>(&small)
                                              : reinterpret_cast<const std::byte*>(&value);
  numbers.insert(numbers.end(), from, from + embedding::size_of(type));
}

}  // namespace

std::int64_t SeededBags::row_bytes(std::int32_t columns) const {
  return columns * embedding::size_of(shape_.rows) + (shape_.rows == TableRows::int8 ? 8 : 0);
}

void SeededBags::put_row(std::int32_t table, std::int64_t row, std::int32_t begin, std::int32_t end,
                         std::byte* to) const {
  std::array<float, most_dim> values{};
  if (files_.has_rows()) files_.read_row(table, row, begin, end, values.data());
  for (std::int32_t c = begin; c < end && !files_.has_rows(); ++c) {
    const std::uint64_t number = mixed(seed_, element, table, row, c);
    if (shape_.rows == TableRows::int8)
      to[c - begin] = static_cast<std::byte>(number >> 56);
    else
      values[static_cast<std::size_t>(c - begin)] = uniform(number);
  }
  if (shape_.rows != TableRows::int8) return base::from_float(type_of(shape_.rows), values.data(), to, end - begin);
  const float scale_and_bias[2] = {uniform(mixed(seed_, element, table, row, -1)) / 64,
                                   uniform(mixed(seed_, element, table, row, -2))};
  std::memcpy(to + (end - begin), scale_and_bias, sizeof scale_and_bias);
}

std::vector<std::int64_t> SeededBags::bag(std::int32_t table, std::int64_t row) const {
  if (files_.has_bags()) {
    const std::span<const std::int64_t> given = files_.bag(table, row);
    return {given.begin(), given.end()};
  }
  const EmbeddingTable& t = shape_.tables[static_cast<std::size_t>(table)];
  const auto most = static_cast<std::uint64_t>(2 * t.hotness + 0.5);
  const auto count = static_cast<std::int64_t>(mixed(seed_, length, table, row, 0) % (most + 1));
  std::vector<std::int64_t> rows;
  for (std::int64_t i = 0; i < count; ++i)
    rows.push_back(static_cast<std::int64_t>(mixed(seed_, index, table, row, i) % static_cast<std::uint64_t>(t.rows)));
  return rows;
}

float SeededBags::weight(std::int32_t table, std::int64_t row, std::int64_t place) const {
  if (files_.has_weights()) return files_.weight(table, row, place);
  return uniform(mixed(seed_, weight_of, table, row, place));
}

float SeededBags::gradient(std::int64_t row, std::int64_t col) const {
  return uniform(mixed(seed_, gradient_of, row, col, 0));
}

RankTables rank_tables(const SeededBags& seeded, const EmbeddingShape& shape, const std::vector<EmbeddingShard>& shards,
                       int rank) {
  RankTables own;
  append(own.offsets, shape.index_type, 0);
  std::int64_t count = 0;
  std::int32_t column = 0;
  for (const EmbeddingShard& s : shards) {
    if (s.rank != rank) continue;
    const EmbeddingTable& whole = shape.tables[static_cast<std::size_t>(s.table)];
    const std::int32_t dim = s.end - s.begin;
    const std::int64_t pitch = seeded.row_bytes(dim);
    std::vector<std::byte>& rows = own.rows.emplace_back(static_cast<std::size_t>(pitch * whole.rows));
    for (std::int64_t r = 0; r < whole.rows; ++r) seeded.put_row(s.table, r, s.begin, s.end, rows.data() + r * pitch);
    own.tables.push_back({rows.data(), whole.rows, pitch, shape.rows == TableRows::int8 ? dim : 0, dim, column});
    column += dim;
    if (shape.optimizer == Optimizer::row_wise_adagrad)
      own.states.emplace_back(static_cast<std::size_t>(whole.rows), 0.0f);
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      const std::vector<std::int64_t> bag = seeded.bag(s.table, b);
      count += std::ssize(bag);
      IMBREX_EXPECTS(count <= most_rows, "rank {} has more than {} indices", rank, most_rows);
      for (std::size_t i = 0; i < bag.size(); ++i) {
        append(own.indices, shape.index_type, bag[i]);
        if (shape.weighted) own.weights.push_back(seeded.weight(s.table, b, static_cast<std::int64_t>(i)));
      }
      append(own.offsets, shape.index_type, count);
    }
  }
  own.bags = {own.indices.data(), own.offsets.data(), shape.weighted ? own.weights.data() : nullptr, count, shape.batch,
              shape.index_type,   shape.pooling};
  return own;
}

}  // namespace imbrex::program
