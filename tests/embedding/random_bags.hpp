// Random lookups, with the memory that they read and write.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "embedding/bags.hpp"

namespace imbrex::test {

/// Uniform, both ends among them.
inline std::int64_t between(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(random);
}

/// Memory of the host: `tables`, `bags` and `output` point into it.
struct RandomBags {
  TableRows type{};
  Type out{};
  std::vector<embedding::Table> table;
  std::vector<std::vector<std::byte>> rows;
  std::vector<std::byte> indices, offsets;
  std::vector<float> weights;
  embedding::Bags bags{};
  std::int32_t ranks = 1;
  std::int64_t pitch = 0;  // elements of an output row
  std::vector<std::vector<std::byte>> part;
  std::vector<void*> parts;
  std::int64_t misfits = 0;  // indices that are no rows

  embedding::Tables tables() const { return {table.data(), static_cast<std::int32_t>(table.size()), type}; }
  embedding::Output output() const { return {parts.data(), ranks, out, pitch}; }
  /// Every byte of the output as it was made.
  void clear_output();
  std::string text() const;
};

struct BagLimits {
  std::int32_t tables = 6;
  std::int64_t rows = 300, part_rows = 12, bag = 40;
  bool misfits = false;  // some indices are no rows
};

/// Tables of any type and width, ragged and empty bags, rows that come twice, both types of indices, 1 to 8 ranks.
RandomBags random_bags(std::mt19937_64& random, const BagLimits& limits = {});

/// Writes a number into indices or offsets.
void put_number(std::vector<std::byte>& numbers, IndexType type, std::int64_t place, std::int64_t value);

/// The element of the output that is column `column` of row `row` of the batch.
float output_at(const RandomBags& c, std::int64_t row, std::int64_t column);

}  // namespace imbrex::test
