#include "plan/tile_order.hpp"

#include <algorithm>
#include <tuple>

namespace imbrex {

std::vector<Block> blocks_of(Range rows, Range cols, const Knobs& knobs) {
  const auto row_cuts = cut(rows.size, knobs.tile_m), col_cuts = cut(cols.size, knobs.tile_n);
  const std::size_t group = static_cast<std::size_t>(
      knobs.order == TileOrder::column_major ? static_cast<std::int64_t>(row_cuts.size()) : knobs.group);
  std::vector<Block> blocks;
  blocks.reserve(row_cuts.size() * col_cuts.size());
  for (std::size_t super = 0; super < row_cuts.size(); super += group)
    for (const Range& col : col_cuts)
      for (std::size_t i = super; i < std::min(super + group, row_cuts.size()); ++i)
        blocks.push_back({{rows.begin + row_cuts[i].begin, row_cuts[i].size}, {cols.begin + col.begin, col.size}});
  return blocks;
}

std::vector<OwnedBlock> scatter_order(const std::vector<Area>& areas, int ranks, int rank, const Knobs& knobs) {
  struct Keyed {
    std::tuple<std::int64_t, std::int64_t, std::int64_t> key;
    OwnedBlock block;
  };
  std::vector<Keyed> keyed;
  for (const Area& area : areas) {
    const auto blocks = blocks_of(area.rows, area.cols, knobs);
    const int turn = (area.owner - rank + ranks - 1) % ranks;  // rank + 1 comes first, the rank itself last
    const bool own = area.owner == rank;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Block& block = blocks[i];
      const auto position = static_cast<std::int64_t>(i);
      std::int64_t outer = 0, middle = turn;
      switch (knobs.order) {
        case TileOrder::owner_major:
          // Own tiles of a part run beside the next part's remote ones, so that their slots have had time to fill.
          outer =
              (block.rows.begin - area.rows.begin) * knobs.parts / area.rows.size + (own && knobs.parts > 1 ? 1 : 0);
          break;
        case TileOrder::column_major: outer = (block.cols.begin - area.cols.begin) / knobs.tile_n; break;
        case TileOrder::naive: middle = area.owner; break;
      }
      keyed.push_back({{outer, middle, position}, {block, area.owner, static_cast<int>(i)}});
    }
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](const Keyed& x, const Keyed& y) { return x.key < y.key; });
  std::vector<OwnedBlock> order;
  order.reserve(keyed.size());
  for (const Keyed& k : keyed) order.push_back(k.block);
  return order;
}

}  // namespace imbrex
