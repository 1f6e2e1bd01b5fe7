#include "embedding/placement.hpp"

#include <algorithm>
#include <optional>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "embedding/bags.hpp"

namespace imbrex::embedding {
namespace {

constexpr std::int64_t index_bytes = 4;
constexpr std::int32_t most_ranks = 1024;  // more than any world has

std::int64_t row_bytes(const PlacementLimits& limits, std::int32_t columns) {
  return columns * size_of(limits.rows) + (limits.rows == TableRows::int8 ? 8 : 0);
}

// For a row of the batch.
double bytes_of(const EmbeddingTable& table, const PlacementLimits& limits, std::int32_t columns) {
  return table.hotness * static_cast<double>(row_bytes(limits, columns) + index_bytes) +
         static_cast<double>(columns) * static_cast<double>(size_of(limits.out));
}

// Into so many parts whose columns differ by 8 at most.
std::vector<EmbeddingShard> parts_of(std::int32_t table, std::int32_t dim, std::int32_t parts) {
  const auto eights = static_cast<std::int32_t>(base::ceil_div(dim, 8));
  std::vector<EmbeddingShard> shards;
  for (std::int32_t i = 0; i < parts; ++i)
    shards.push_back({table, 0, eights * i / parts * 8, std::min(dim, eights * (i + 1) / parts * 8)});
  return shards;
}

// With tables cut so that no shard is heavier than `most` bytes, where its columns allow that.
std::optional<Placement> try_place(std::span<const EmbeddingTable> tables, const PlacementLimits& limits, double most) {
  Placement made;
  made.ranks.resize(static_cast<std::size_t>(limits.ranks));
  for (std::int32_t t = 0; t < static_cast<std::int32_t>(tables.size()); ++t) {
    const EmbeddingTable& table = tables[static_cast<std::size_t>(t)];
    const std::int32_t most_parts = std::max(1, table.dim / std::max(8, limits.least_columns));
    std::vector<EmbeddingShard> parts;
    for (std::int32_t n = 1; n <= most_parts; ++n) {
      parts = parts_of(t, table.dim, n);
      const auto fits = [&](const EmbeddingShard& s) {
        return bytes_of(table, limits, s.end - s.begin) <= most &&
               (limits.memory == 0 || table.rows * row_bytes(limits, s.end - s.begin) <= limits.memory);
      };
      if (std::all_of(parts.begin(), parts.end(), fits)) break;
    }
    made.shards.insert(made.shards.end(), parts.begin(), parts.end());
  }
  std::vector<EmbeddingShard*> heavy_first;
  for (EmbeddingShard& shard : made.shards) heavy_first.push_back(&shard);
  const auto load_of = [&](const EmbeddingShard& s) {
    return bytes_of(tables[static_cast<std::size_t>(s.table)], limits, s.end - s.begin);
  };
  std::stable_sort(heavy_first.begin(), heavy_first.end(),
                   [&](const EmbeddingShard* a, const EmbeddingShard* b) { return load_of(*a) > load_of(*b); });
  for (EmbeddingShard* shard : heavy_first) {
    const std::int64_t memory =
        tables[static_cast<std::size_t>(shard->table)].rows * row_bytes(limits, shard->end - shard->begin);
    RankLoad* best = nullptr;
    for (RankLoad& rank : made.ranks)
      if ((limits.memory == 0 || rank.memory + memory <= limits.memory) &&
          (best == nullptr || rank.bytes < best->bytes))
        best = &rank;
    if (best == nullptr) return std::nullopt;
    shard->rank = static_cast<std::int32_t>(best - made.ranks.data());
    best->bytes += load_of(*shard);
    best->memory += memory;
  }
  double sum = 0, largest = 0;
  for (const RankLoad& rank : made.ranks) sum += rank.bytes, largest = std::max(largest, rank.bytes);
  made.balance = largest * limits.ranks / sum;
  return made;
}

}  // namespace

void validate(const EmbeddingTable& table, std::size_t number) {
  IMBREX_EXPECTS(table.rows >= 1 && table.rows <= most_rows, "table {}: {} rows: from 1 to {}", number, table.rows,
                 most_rows);
  IMBREX_EXPECTS(table.dim >= least_dim && table.dim <= most_dim && table.dim % 4 == 0,
                 "table {}: dim = {}: it must be a multiple of 4 from {} to {}", number, table.dim, least_dim,
                 most_dim);
  IMBREX_EXPECTS(table.hotness >= 0 && table.hotness <= static_cast<double>(most_rows),
                 "table {}: hotness = {}: from 0 to {}", number, table.hotness, most_rows);
}

}  // namespace imbrex::embedding

namespace imbrex {

Placement place_tables(std::span<const EmbeddingTable> tables, const PlacementLimits& limits) {
  using namespace embedding;
  IMBREX_EXPECTS(!tables.empty() && limits.ranks >= 1 && limits.ranks <= most_ranks,
                 "{} tables on {} ranks: at least one each, and {} ranks at most", tables.size(), limits.ranks,
                 most_ranks);
  IMBREX_EXPECTS(limits.memory >= 0 && limits.least_columns >= 8 && limits.least_columns % 8 == 0,
                 "shards of {} columns at least, {} bytes a rank: a multiple of 8, and not negative",
                 limits.least_columns, limits.memory);
  double sum = 0;
  std::int64_t memory = 0;
  for (std::size_t t = 0; t < tables.size(); ++t) {
    const EmbeddingTable& table = tables[t];
    validate(table, t);
    sum += bytes_of(table, limits, table.dim);
    memory += table.rows * row_bytes(limits, table.dim);
  }
  // From one table in one piece to shards of a sixteenth of what a rank should do.
  const double mean = sum / limits.ranks;
  std::optional<Placement> best = try_place(tables, limits, sum);
  for (int parts = 1; parts <= 16; ++parts) {
    std::optional<Placement> made = try_place(tables, limits, mean / parts);
    // More cuts are worth it for more than a thousandth.
    if (made && (!best || made->balance < best->balance - 1e-3 ||
                 (made->balance <= best->balance && made->shards.size() < best->shards.size())))
      best = std::move(made);
  }
  IMBREX_EXPECTS(best.has_value(), "tables of {} bytes on {} ranks of {} bytes each: no way was found that they fit",
                 memory, limits.ranks, limits.memory);
  return *best;
}

}  // namespace imbrex
