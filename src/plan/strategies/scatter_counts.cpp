#include "plan/strategies/scatter_counts.hpp"

#include <algorithm>

#include "base/ceil_div.hpp"
#include "base/narrow.hpp"

namespace imbrex::plan {

using base::counted_product;
using base::counted_sum;

std::int64_t rows_of_a_copy(const Area& area, const Knobs& knobs) {
  return knobs.comm_rows > 0 ? knobs.comm_rows : std::max<std::int64_t>(area.rows.size, 1);
}

std::int64_t count_tiles(const Builder& b, const ScatterWays& ways, const std::vector<Area>& areas) {
  const Extent& all = b.shapes().product;
  if (ways.spanning) return count_blocks({0, {0, all.rows}, {0, all.cols}}, b.knobs());
  std::int64_t tiles = 0;
  for (const Area& area : areas) tiles = counted_sum(tiles, count_blocks(area, b.knobs()));
  return tiles;
}

Counts count_scattered(const Builder& b, const ScatterWays& ways, const std::vector<Area>& areas, std::int64_t parts) {
  const Knobs& knobs = b.knobs();
  const std::int64_t ranks = b.ranks(), tiles = count_tiles(b, ways, areas);
  // Pieces: parts of tiles that one rank owns. Meetings: of a piece and a copy, where copies carry pieces. Those of all
  // areas together, and of the one that has most.
  std::int64_t pieces = 0, own_pieces = 0, meetings = 0, own_meetings = 0, own_copies = 0;
  for (const Area& area : areas) {
    if (area.rows.size == 0 || area.cols.size == 0) continue;
    const std::int64_t begun = ways.spanning ? 1 : 0;  // tiles may begin before the area does
    const std::int64_t rows = base::ceil_div(area.rows.size, knobs.tile_m) + begun,
                       cols = base::ceil_div(area.cols.size, knobs.tile_n) + begun,
                       copies = ways.copies ? base::ceil_div(area.rows.size, rows_of_a_copy(area, knobs)) : 0;
    const std::int64_t of_area = counted_product(rows, cols), met = counted_product(most_overlaps(rows, copies), cols);
    pieces = counted_sum(pieces, of_area);
    meetings = counted_sum(meetings, met);
    own_pieces = std::max(own_pieces, of_area);
    own_meetings = std::max(own_meetings, met);
    own_copies = std::max(own_copies, counted_product(ranks, copies));
  }
  const std::int64_t sent = ways.one_shot ? counted_product(ranks, pieces) : pieces;
  // Sums of what the rank owns: what they add, wait for, store and post, perhaps to all ranks.
  const std::int64_t sums =
      ways.reduce
          ? counted_product(ranks, counted_sum(counted_product(3, own_pieces), std::max(own_pieces, own_meetings)))
          : 0;
  Counts counts;
  counts.tasks =
      counted_sum(counted_product(tiles, parts), ways.reduce && !ways.in_tile ? own_pieces : 0, own_copies, 2);
  counts.parts = counted_sum(counted_product(3, tiles, parts), counted_product(3, sent), meetings, sums,
                             counted_product(6, own_copies), 2 * ranks);
  if (ranks > 1)
    counts.signals = counted_sum(ways.copies ? counted_product(2, own_copies) : ways.reduce ? own_pieces : 0, ranks, 1);
  if (parts > 1) counts.signals = counted_sum(counts.signals, tiles);
  return counts;
}

}  // namespace imbrex::plan
