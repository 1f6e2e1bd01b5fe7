// Which rank holds which table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "embedding/bags.hpp"

namespace imbrex::embedding {

/// A table to be placed.
struct TableLoad {
  std::int64_t rows;
  std::int32_t dim;
  double hotness;  ///< rows that a bag holds, on average
};

/// Columns [begin, end) of a table, on one rank.
struct Shard {
  std::int32_t table, rank, begin, end;
};

/// What a rank does for each row of the batch, and what it holds.
struct RankLoad {
  double bytes = 0;         ///< gathered and stored
  std::int64_t memory = 0;  ///< of its shards' rows
};

struct Placement {
  std::vector<Shard> shards;  ///< by table, then by column
  std::vector<RankLoad> ranks;
  double balance = 0;  ///< the largest of the ranks' bytes over their mean: 1 is the best
};

struct PlacementLimits {
  std::int32_t ranks = 1;
  RowType rows = RowType::fp32;
  Type out = Type::fp32;
  std::int64_t memory = 0;          ///< bytes of a rank's tables at most; 0: as many as there are
  std::int32_t least_columns = 32;  ///< of a shard, unless the table has fewer; a multiple of 8
};

/// Deals tables to ranks so that each gathers and stores about as many bytes: heavy ones first, each to the rank that
/// has least to do and room. A table that is too heavy for one rank, or too large, is cut by columns, into multiples of
/// 8 but for the last; how many cuts are made is tried, and the best balance counts, the fewest cuts among equal ones.
/// A shard reads all indices of its table: that counts. Pure: the same on every rank. Throws Error(invalid_input)
/// naming value and rule, and where the tables do not fit.
Placement place(std::span<const TableLoad> tables, const PlacementLimits& limits);

}  // namespace imbrex::embedding
