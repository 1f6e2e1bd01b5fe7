#include "plan/tile_order.hpp"

#include <algorithm>
#include <limits>

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

// `turn`: an owner's place in a rank's sequence; owners have one area each. `shift`: columns by which the rank's own
// blocks are moved.
template <typename Turn>
std::vector<OwnedBlock> ordered(const std::vector<Area>& areas, int rank, const Knobs& knobs, std::int64_t shift,
                                Turn&& turn) {
  // An area's blocks come in the order in which they are taken, so areas are merged: by step, then by turn.
  struct Run {
    int turn = 0, owner = 0;
    std::int64_t columns = 0, shift = 0;
    const Area* area = nullptr;
    std::vector<Block> blocks;
    std::size_t next = 0;
    std::int64_t step = 0;  // of the next block
  };
  const bool by_column = knobs.order == TileOrder::column_major;
  std::vector<Run> runs;
  std::size_t count = 0;
  for (const Area& area : areas) {
    const int place = knobs.order == TileOrder::naive ? area.owner : turn(area.owner);
    const std::int64_t columns = (area.cols.size + knobs.tile_n - 1) / knobs.tile_n;
    const std::int64_t super_rows = (area.rows.size + knobs.group * knobs.tile_m - 1) / (knobs.group * knobs.tile_m);
    const std::int64_t before = knobs.abreast == 0 ? 0 : place / knobs.abreast * super_rows * columns;
    runs.push_back({place, area.owner, columns, before + (area.owner == rank ? shift : 0), &area,
                    blocks_of(area.rows, area.cols, knobs)});
    count += runs.back().blocks.size();
  }
  std::stable_sort(runs.begin(), runs.end(), [](const Run& x, const Run& y) { return x.turn < y.turn; });
  const auto set_step = [&](Run& run) {
    if (run.next == run.blocks.size()) return;
    const Block& block = run.blocks[run.next];
    run.step = (block.rows.begin - run.area->rows.begin) / (knobs.group * knobs.tile_m) * run.columns +
               (block.cols.begin - run.area->cols.begin) / knobs.tile_n + run.shift;
  };
  std::vector<OwnedBlock> order;
  order.reserve(count);
  const auto take = [&](Run& run) {
    order.push_back({run.blocks[run.next], run.owner, static_cast<int>(run.next)});
    ++run.next;
  };
  if (!by_column) {
    for (Run& run : runs)
      while (run.next < run.blocks.size()) take(run);
    return order;
  }
  for (Run& run : runs) set_step(run);
  while (order.size() < count) {
    std::int64_t step = std::numeric_limits<std::int64_t>::max();
    for (const Run& run : runs)
      if (run.next < run.blocks.size()) step = std::min(step, run.step);
    for (Run& run : runs)
      while (run.next < run.blocks.size() && run.step == step) {
        take(run);
        set_step(run);
      }
  }
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
