// What follows from the tables of an embedding_all_to_all.
#pragma once

#include <vector>

#include "problem/descriptor.hpp"

namespace imbrex::problem {

OperatorDescriptor embedding_descriptor();

/// Shards that a problem may have.
inline constexpr std::size_t most_shards = 1 << 16;

/// Columns of the output: those of all shards.
std::int64_t width_of(const Tables& tables);

/// Columns that stand side by side in what a rank looks up and in the output.
struct Run {
  std::int64_t from = 0;  ///< among the columns of the shards taken
  std::int64_t to = 0;    ///< in the output
  std::int64_t cols = 0;
};

/// The shards of one rank, as it holds them.
class OwnShards {
 public:
  OwnShards(const Tables& tables, int rank);

  std::size_t count() const { return shards_.size(); }
  const TableShard& operator[](std::size_t i) const { return shards_[i]; }

  /// Columns of the shards before number `i`; with their count, of all.
  std::int64_t cols_before(std::size_t i) const { return first_[i]; }
  std::int64_t cols() const { return first_.back(); }

  /// Where the columns of shards first, first + 1, ... go, as few runs as there can be.
  std::vector<Run> runs(std::size_t first, std::size_t count) const;

 private:
  std::vector<TableShard> shards_;
  std::vector<std::int64_t> first_;
};

/// Each rank's.
std::vector<OwnShards> shards_of_ranks(const Problem& problem);

/// Bytes of a row of `dim` numbers, a scale and a bias with it where it has them.
std::int64_t row_bytes(TableRows rows, std::int64_t dim);

}  // namespace imbrex::problem
