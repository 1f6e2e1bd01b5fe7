#include "embedding/random_bags.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/convert.hpp"
#include "embedding/rows.hpp"

namespace imbrex::test {
namespace {

using namespace embedding;

constexpr std::byte untouched{0x5a};

// Values of all magnitudes that sums of fp16 hold.
float random_value(std::mt19937_64& random) {
  return std::ldexp(std::uniform_real_distribution<float>(-1.0f, 1.0f)(random),
                    static_cast<int>(between(random, -9, 4)));
}

void fill_rows(std::mt19937_64& random, TableRows type, const Table& table, std::vector<std::byte>& rows) {
  std::vector<float> values(static_cast<std::size_t>(table.dim));
  for (std::int64_t r = 0; r < table.count; ++r) {
    std::byte* at = rows.data() + r * table.pitch;
    if (type == TableRows::int8) {
      for (std::int32_t i = 0; i < table.dim; ++i) at[i] = static_cast<std::byte>(random() % 256);
      const float scale_and_bias[2] = {random_value(random) / 64, random_value(random)};
      std::memcpy(at + table.scale, scale_and_bias, sizeof scale_and_bias);
    } else {
      for (float& value : values) value = random_value(random);
      base::from_float(type_of(type), values.data(), at, table.dim);
    }
  }
}

}  // namespace

void put_number(std::vector<std::byte>& numbers, IndexType type, std::int64_t place, std::int64_t value) {
  if (type == IndexType::int64) {
    std::memcpy(numbers.data() + place * 8, &value, 8);
  } else {
    const auto small = static_cast<std::int32_t>(value);
    std::memcpy(numbers.data() + place * 4, &small, 4);
  }
}

void RandomBags::clear_output() {
  for (auto& bytes : part) std::fill(bytes.begin(), bytes.end(), untouched);
}

std::string RandomBags::text() const {
  std::string dims;
  for (const Table& t : table) dims += fmt::format(" {}x{}", t.count, t.dim);
  return fmt::format("rows of {}{}, output of {}, {} of {} indices of {}{}, batch {}, ranks {}", name_of(type), dims,
                     imbrex::name_of(out), name_of(bags.pooling), bags.count, name_of(bags.type),
                     bags.weights != nullptr ? " with weights" : "", bags.batch, ranks);
}

RandomBags random_bags(std::mt19937_64& random, const BagLimits& limits) {
  RandomBags c;
  c.type = static_cast<TableRows>(between(random, 0, 3));
  c.out = static_cast<Type>(between(random, 0, 2));
  c.ranks = static_cast<std::int32_t>(between(random, 1, 8));
  c.bags.batch = c.ranks * between(random, 1, limits.part_rows);
  c.bags.type = static_cast<IndexType>(between(random, 0, 1));
  c.bags.pooling = static_cast<Pooling>(between(random, 0, 1));
  const std::int64_t tables = between(random, 1, limits.tables), element = size_of(c.type);
  // Half of the cases fit vectors of 16 bytes; the widest need several pieces.
  const std::int64_t step = between(random, 0, 1) == 0 ? 8 : 4;
  std::int64_t column = step * between(random, 0, 2);
  for (std::int64_t t = 0; t < tables; ++t) {
    const std::int64_t most = between(random, 0, 3) == 0 ? most_dim : 160;
    Table table{};
    table.dim = static_cast<std::int32_t>(step * between(random, 1, most / step));
    table.column = static_cast<std::int32_t>(column);
    table.count = between(random, 1, limits.rows);
    column += table.dim + step * between(random, 0, 1);
    table.scale = c.type == TableRows::int8 ? table.dim + step * between(random, 0, 1) : 0;
    const std::int64_t used = c.type == TableRows::int8 ? table.scale + 8 : table.dim * element;
    table.pitch = used + step * element * between(random, 0, 2);
    if (c.type == TableRows::int8) table.pitch = (table.pitch + step - 1) / step * step;
    c.table.push_back(table);
    c.rows.emplace_back(static_cast<std::size_t>(table.pitch * table.count));
  }
  for (std::size_t t = 0; t < c.table.size(); ++t) {
    c.table[t].rows = c.rows[t].data();
    fill_rows(random, c.type, c.table[t], c.rows[t]);
  }
  c.pitch = column + step * between(random, 0, 2);

  std::vector<std::int64_t> offsets{0}, indices;
  for (const Table& table : c.table) {
    // Tables of one row a bag, of none, of many, and of any number.
    const std::int64_t kind = between(random, 0, 3);
    const std::int64_t one_length = kind == 0 ? 1 : between(random, 0, 3);
    const std::int64_t hot = between(random, 0, table.count - 1);
    for (std::int64_t b = 0; b < c.bags.batch; ++b) {
      const std::int64_t length = kind <= 1                     ? one_length
                                  : between(random, 0, 3) == 0  ? 0
                                  : between(random, 0, 30) == 0 ? limits.bag * 4
                                                                : between(random, 0, limits.bag);
      for (std::int64_t i = 0; i < length; ++i)
        indices.push_back(between(random, 0, 3) == 0 ? hot : between(random, 0, table.count - 1));
      offsets.push_back(static_cast<std::int64_t>(indices.size()));
    }
  }
  c.bags.count = std::ssize(indices);
  const auto bytes = static_cast<std::size_t>(size_of(c.bags.type));
  c.indices.resize(indices.size() * bytes), c.offsets.resize(offsets.size() * bytes);
  for (std::size_t i = 0; i < offsets.size(); ++i)
    put_number(c.offsets, c.bags.type, static_cast<std::int64_t>(i), offsets[i]);
  for (std::size_t i = 0; i < indices.size(); ++i) {
    std::int64_t index = indices[i];
    if (limits.misfits && between(random, 0, 20) == 0) {
      const std::int64_t wide[] = {-1, -(std::int64_t{1} << 40), std::int64_t{1} << 33, 0x7fffffff, limits.rows};
      index = wide[between(random, 0, 4)];
      if (c.bags.type == IndexType::int32) index = static_cast<std::int32_t>(index % 0x40000000) | 0x40000000;
      ++c.misfits;
    }
    put_number(c.indices, c.bags.type, static_cast<std::int64_t>(i), index);
  }
  if (between(random, 0, 1) == 0) {
    for (std::int64_t i = 0; i < c.bags.count; ++i) c.weights.push_back(random_value(random));
    c.weights.push_back(0.0f);  // so that it has an address
    c.bags.weights = c.weights.data();
  }
  c.indices.resize(c.indices.size() + bytes);
  c.bags.indices = c.indices.data(), c.bags.offsets = c.offsets.data();
  for (std::int32_t d = 0; d < c.ranks; ++d) {
    c.part.emplace_back(static_cast<std::size_t>(c.bags.batch / c.ranks * c.pitch) * imbrex::size_of(c.out));
    c.parts.push_back(c.part.back().data());
  }
  c.clear_output();
  return c;
}

float output_at(const RandomBags& c, std::int64_t row, std::int64_t column) {
  const std::int64_t part_rows = c.bags.batch / c.ranks;
  const auto element = static_cast<std::int64_t>(imbrex::size_of(c.out));
  float value = 0;
  base::to_float(c.out,
                 static_cast<const std::byte*>(c.parts[static_cast<std::size_t>(row / part_rows)]) +
                     (row % part_rows * c.pitch + column) * element,
                 &value, 1);
  return value;
}

}  // namespace imbrex::test
