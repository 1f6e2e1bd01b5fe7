#include "plan/tile_order.hpp"

#include <algorithm>
#include <tuple>

namespace imbrex {

std::vector<Block> blocks_of(Range rows, Range cols, const Knobs& knobs) {
  const auto row_cuts = cut(rows.size, knobs.tile_m), col_cuts = cut(cols.size, knobs.tile_n);
  const auto group = static_cast<std::size_t>(knobs.group);
  std::vector<Block> blocks;
  blocks.reserve(row_cuts.size() * col_cuts.size());
  for (std::size_t super = 0; super < row_cuts.size(); super += group)
    for (const Range& col : col_cuts)
      for (std::size_t i = super; i < std::min(super + group, row_cuts.size()); ++i)
        blocks.push_back({{rows.begin + row_cuts[i].begin, row_cuts[i].size}, {cols.begin + col.begin, col.size}});
  return blocks;
}

namespace {

// `turn`: an owner's place in a rank's sequence. `shift`: columns by which the rank's own blocks are moved.
template <typename Turn>
std::vector<OwnedBlock> ordered(const std::vector<Area>& areas, int rank, const Knobs& knobs, std::int64_t shift,
                                Turn&& turn) {
  struct Keyed {
    std::tuple<std::int64_t, std::int64_t, std::int64_t> key;
    OwnedBlock block;
  };
  const bool by_column = knobs.order == TileOrder::column_major;
  std::vector<Keyed> keyed;
  for (const Area& area : areas) {
    const std::int64_t columns = (area.cols.size + knobs.tile_n - 1) / knobs.tile_n;
    const std::int64_t super_rows = (area.rows.size + knobs.group * knobs.tile_m - 1) / (knobs.group * knobs.tile_m);
    const auto blocks = blocks_of(area.rows, area.cols, knobs);
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      const Block& block = blocks[i];
      const int middle = knobs.order == TileOrder::naive ? area.owner : turn(area.owner);
      std::int64_t step = 0;
      if (by_column) {
        const std::int64_t before = knobs.abreast == 0 ? 0 : middle / knobs.abreast * super_rows;
        step = (before + (block.rows.begin - area.rows.begin) / (knobs.group * knobs.tile_m)) * columns +
               (block.cols.begin - area.cols.begin) / knobs.tile_n + (area.owner == rank ? shift : 0);
      }
      keyed.push_back({{step, middle, static_cast<std::int64_t>(i)}, {block, area.owner, static_cast<int>(i)}});
    }
  }
  std::stable_sort(keyed.begin(), keyed.end(), [](const Keyed& x, const Keyed& y) { return x.key < y.key; });
  std::vector<OwnedBlock> order;
  order.reserve(keyed.size());
  for (const Keyed& k : keyed) order.push_back(k.block);
  return order;
}

}  // namespace

std::vector<OwnedBlock> scatter_order(const std::vector<Area>& areas, int ranks, int rank, const Knobs& knobs) {
  // rank + 1 comes first, the rank itself last
  return ordered(areas, rank, knobs, knobs.own_shift, [&](int owner) { return (owner - rank + ranks - 1) % ranks; });
}

std::vector<OwnedBlock> gather_order(const std::vector<Area>& areas, const std::vector<int>& arrival, int rank,
                                     const Knobs& knobs) {
  return ordered(areas, rank, knobs, -knobs.own_shift,
                 [&](int owner) { return arrival[static_cast<std::size_t>(owner)]; });
}

}  // namespace imbrex
