// Embedding tables, as data that everybody means the same by: how rows lie, who holds which columns, how bags are added
// up and what gradients do.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "imbrex/types.hpp"

namespace imbrex {

/// How the rows of embedding tables lie in memory.
enum class TableRows : std::uint8_t {
  fp32,
  fp16,
  bf16,
  /// Codes q from 0 to 255 and after the last of all its columns a scale and a bias in fp32: an element is
  /// scale * q + bias, rounded once.
  int8,
};

enum class Pooling : std::uint8_t {
  sum,
  mean,  ///< the sum times 1 / n, n the rows that were added; zero where there are none
};

/// The type of indices and offsets.
enum class IndexType : std::uint8_t { int32, int64 };

/// What happens where an index is no row of its table.
enum class Misfits : std::uint8_t {
  refused,  ///< Error(invalid_input) naming table, bag, position, value and rule
  ignored,  ///< it is as if it were not there, and counted; offsets that do not fit are refused still
};

/// What gradients do to rows. Each row that bags hold is changed once, by the sum of its gradients.
enum class Optimizer : std::uint8_t {
  sgd,               ///< row -= rate * gradient
  row_wise_adagrad,  ///< state += mean of gradient^2 over the columns; row -= rate / (sqrt(state) + epsilon) * gradient
};

/// "fp32", "fp16", "bf16" or "int8"; "sum" or "mean"; "int32" or "int64"; "refused" or "ignored"; "sgd" or
/// "row_wise_adagrad".
std::string_view name_of(TableRows rows);
std::string_view name_of(Pooling pooling);
std::string_view name_of(IndexType type);
std::string_view name_of(Misfits misfits);
std::string_view name_of(Optimizer optimizer);

/// Inverse of name_of; throws Error(invalid_input) listing the names that exist.
TableRows parse_table_rows(std::string_view name);
Pooling parse_pooling(std::string_view name);
IndexType parse_index_type(std::string_view name);
Misfits parse_misfits(std::string_view name);
Optimizer parse_optimizer(std::string_view name);

/// A whole table.
struct EmbeddingTable {
  std::int64_t rows = 0;
  std::int32_t dim = 0;  ///< columns: a multiple of 4 from 4 to 1024
  double hotness = 1;    ///< rows that a bag holds, on average: what times and balance are predicted by, and no result

  bool operator==(const EmbeddingTable&) const = default;
};

/// Columns [begin, end) of a table, on one rank; both are multiples of 4.
struct EmbeddingShard {
  std::int32_t table = 0, rank = 0, begin = 0, end = 0;

  bool operator==(const EmbeddingShard&) const = default;
};

/// What a rank does for each row of the batch, and what it holds.
struct RankLoad {
  double bytes = 0;         ///< gathered and stored
  std::int64_t memory = 0;  ///< of its shards' rows
};

struct Placement {
  std::vector<EmbeddingShard> shards;  ///< by table, then by column
  std::vector<RankLoad> ranks;
  double balance = 0;  ///< the largest of the ranks' bytes over their mean: 1 is the best
};

struct PlacementLimits {
  std::int32_t ranks = 1;
  TableRows rows = TableRows::fp32;
  Type out = Type::fp32;
  std::int64_t memory = 0;          ///< bytes of a rank's tables at most; 0: as many as there are
  std::int32_t least_columns = 32;  ///< of a shard, unless the table has fewer; a multiple of 8
};

/// Deals tables to ranks so that each gathers and stores about as many bytes: heavy ones first, each to the rank that
/// has least to do and room. A table that is too heavy for one rank, or too large, is cut by columns, into multiples of
/// 8 (the last may be narrower). Numbers of cuts are tried. The best balance counts; among equal ones, the fewest cuts.
/// A shard reads all indices of its table: that counts. Pure: the same on every rank. Throws Error(invalid_input)
/// naming value and rule, and where the tables do not fit.
Placement place_tables(std::span<const EmbeddingTable> tables, const PlacementLimits& limits);

}  // namespace imbrex
