// Tables and bags from .npy files, whole: those of all tables, of which each rank takes its part (docs/embedding.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "imbrex/embedding.hpp"
#include "imbrex/npy.hpp"

namespace imbrex::program {

/// Empty: from the seed.
struct BagPaths {
  std::string indices, offsets;  ///< given together
  std::string weights;           ///< goes with them
  std::string rows;              ///< of table t: rows + t + ".npy"
};

class BagFiles {
 public:
  /// Reads bags, and opens tables. Throws Error(invalid_input) naming file, value and rule: offsets begin with 0, do
  /// not decrease and end with the number of indices, and every index is a row of its table.
  BagFiles(const BagPaths& paths, const EmbeddingShape& shape);

  bool has_bags() const { return !offsets_.empty(); }
  bool has_weights() const { return !weights_.empty(); }
  bool has_rows() const { return !tables_.empty(); }

  /// The bag of a row of the batch in a table.
  std::span<const std::int64_t> bag(std::int32_t table, std::int64_t row) const;
  float weight(std::int32_t table, std::int64_t row, std::int64_t place) const;

  /// Columns [begin, end) of a row.
  void read_row(std::int32_t table, std::int64_t row, std::int32_t begin, std::int32_t end, float* to) const;

 private:
  void read_bags(const BagPaths& paths, const EmbeddingShape& shape);
  std::int64_t first_of(std::int32_t table, std::int64_t row) const;

  std::int64_t batch_;
  std::vector<std::int64_t> indices_, offsets_;
  std::vector<float> weights_;
  std::vector<std::unique_ptr<NpyFile>> tables_;
};

}  // namespace imbrex::program
