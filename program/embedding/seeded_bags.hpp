// Tables, bags and gradients that come from files or follow from a seed, any part of them without the others.
#pragma once

#include <cstdint>
#include <vector>

#include "embedding/bags.hpp"
#include "imbrex/embedding.hpp"
#include "program/embedding/bag_files.hpp"

namespace imbrex::program {

class SeededBags {
 public:
  SeededBags(const EmbeddingShape& shape, std::uint64_t seed, const BagFiles& files)
      : shape_(shape), seed_(seed), files_(files) {}

  /// Columns [begin, end) of a row as it lies in a table; scale and bias follow codes.
  void put_row(std::int32_t table, std::int64_t row, std::int32_t begin, std::int32_t end, std::byte* to) const;

  /// Bytes of so many columns of a row.
  std::int64_t row_bytes(std::int32_t columns) const;

  /// The bag of a row of the batch; by the seed: 0 to twice the table's hotness rows.
  std::vector<std::int64_t> bag(std::int32_t table, std::int64_t row) const;
  float weight(std::int32_t table, std::int64_t row, std::int64_t place) const;

  /// An element of the gradients.
  float gradient(std::int64_t row, std::int64_t col) const;

 private:
  const EmbeddingShape& shape_;
  std::uint64_t seed_;
  const BagFiles& files_;
};

/// What a rank holds, in memory of the host.
struct RankTables {
  std::vector<embedding::Table> tables;  ///< columns are those of the rank's shards side by side
  std::vector<std::vector<std::byte>> rows;
  std::vector<std::vector<float>> states;
  std::vector<std::byte> indices, offsets;
  std::vector<float> weights;
  embedding::Bags bags{};
};

/// What `rank` holds of all shards. Throws Error(invalid_input) where its indices are too many for their type.
RankTables rank_tables(const SeededBags& seeded, const EmbeddingShape& shape, const std::vector<EmbeddingShard>& shards,
                       int rank);

}  // namespace imbrex::program
