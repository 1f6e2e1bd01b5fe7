#include "plan/strategies/tile_order.hpp"

#include <algorithm>
#include <limits>

#include "base/ceil_div.hpp"

namespace imbrex::plan {

std::vector<TileBlock> blocks_of(Range rows, Range cols, const Knobs& knobs) {
  const auto row_cuts = cut(rows.size, knobs.tile_m), col_cuts = cut(cols.size, knobs.tile_n);
  const auto group = static_cast<std::size_t>(knobs.group);
  std::vector<TileBlock> blocks;
  blocks.reserve(row_cuts.size() * col_cuts.size());
  for (std::size_t super = 0; super < row_cuts.size(); super += group)
    for (const Range& col : col_cuts)
      for (std::size_t i = super; i < std::min(super + group, row_cuts.size()); ++i)
        blocks.push_back({{rows.begin + row_cuts[i].begin, row_cuts[i].size}, {cols.begin + col.begin, col.size}});
  return blocks;
}

namespace {

// The way a rank takes through an area: a block column of a swizzle group at a time. Areas are merged by step, then by
// turn.
class Way {
 public:
  // `turn`: the owner's place in the rank's sequence; owners have one area each. `shift`: columns by which the rank's
  // own blocks are moved.
  Way(const Area& area, int rank, const Knobs& knobs, int turn, std::int64_t shift)
      : area_(&area),
        tile_m_(knobs.tile_m),
        tile_n_(knobs.tile_n),
        group_(knobs.group),
        turn_(knobs.order == TileOrder::naive ? area.owner : turn),
        rows_(base::ceil_div(area.rows.size, tile_m_)),
        columns_(base::ceil_div(area.cols.size, tile_n_)),
        steps_(base::ceil_div(rows_, group_) * columns_) {
    if (knobs.abreast > 0) shift_ = turn_ / knobs.abreast * steps_;
    if (area.owner == rank) shift_ += shift;
  }

  int turn() const { return turn_; }
  bool ended() const { return next_ == steps_; }
  std::int64_t step() const { return next_ + shift_; }
  std::int64_t blocks() const { return rows_ * columns_; }

  // How many blocks it takes before `step`.
  std::int64_t blocks_before(std::int64_t step) const {
    const std::int64_t steps = std::clamp<std::int64_t>(step - shift_, 0, steps_);
    if (steps == steps_) return blocks();
    const std::int64_t super = steps / columns_;
    return super * group_ * columns_ + steps % columns_ * std::min(group_, rows_ - super * group_);
  }

  void take(const BlockVisit& visit) {
    const std::int64_t first = next_ / columns_ * group_, col = next_ % columns_ * tile_n_;
    const Range cols{area_->cols.begin + col, std::min(tile_n_, area_->cols.size - col)};
    for (std::int64_t i = first; i < std::min(first + group_, rows_); ++i) {
      const Range rows{area_->rows.begin + i * tile_m_, std::min(tile_m_, area_->rows.size - i * tile_m_)};
      visit({{rows, cols}, area_->owner, taken_++});
    }
    ++next_;
  }

 private:
  const Area* area_;
  std::int64_t tile_m_, tile_n_, group_;
  int turn_, taken_ = 0;
  std::int64_t rows_, columns_, steps_, shift_ = 0, next_ = 0;
};

template <typename Turn>
void for_each(const std::vector<Area>& areas, int rank, const Knobs& knobs, std::int64_t shift, const BlockVisit& visit,
              Turn&& turn) {
  std::vector<Way> ways;
  for (const Area& area : areas) ways.emplace_back(area, rank, knobs, turn(area.owner), shift);
  std::stable_sort(ways.begin(), ways.end(), [](const Way& x, const Way& y) { return x.turn() < y.turn(); });
  if (knobs.order != TileOrder::column_major) {
    for (Way& way : ways)
      while (!way.ended()) way.take(visit);
    return;
  }
  for (;;) {
    constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
    std::int64_t step = none;
    for (const Way& way : ways)
      if (!way.ended()) step = std::min(step, way.step());
    if (step == none) return;
    for (Way& way : ways)
      if (!way.ended() && way.step() == step) way.take(visit);
  }
}

// rank + 1 comes first, the rank itself last
int scatter_turn(int owner, int ranks, int rank) { return (owner - rank + ranks - 1) % ranks; }

}  // namespace

bool are_of_one_size(const std::vector<Area>& areas) {
  return std::all_of(areas.begin(), areas.end(), [&](const Area& area) {
    return area.rows.size == areas.front().rows.size && area.cols.size == areas.front().cols.size;
  });
}

RankTiles spanning_tiles(const Extent& product, const std::vector<Area>& areas, const Knobs& knobs) {
  std::vector<int> next(areas.size());
  RankTiles all;
  for (const TileBlock& block : blocks_of({0, product.rows}, {0, product.cols}, knobs)) {
    RankTile tile{block, all.pieces.size(), 0};
    for (const Area& area : areas) {
      const std::int64_t begin = std::max(block.rows.begin, area.rows.begin);
      const std::int64_t end = std::min(block.rows.end(), area.rows.end());
      const std::int64_t left = std::max(block.cols.begin, area.cols.begin);
      const std::int64_t right = std::min(block.cols.end(), area.cols.end());
      if (begin < end && left < right) {
        int& index = next[static_cast<std::size_t>(area.owner)];
        all.pieces.push_back({{{begin, end - begin}, {left, right - left}}, area.owner, index++});
        ++tile.count;
      }
    }
    all.spanning.push_back(tile);
  }
  return all;
}

std::int64_t count_blocks(const Area& area, const Knobs& knobs) {
  return base::ceil_div(area.rows.size, knobs.tile_m) * base::ceil_div(area.cols.size, knobs.tile_n);
}

void for_each_scattered(const std::vector<Area>& areas, int ranks, int rank, const Knobs& knobs,
                        const BlockVisit& visit) {
  for_each(areas, rank, knobs, knobs.own_shift, visit, [&](int owner) { return scatter_turn(owner, ranks, rank); });
}

std::int64_t scatter_lead(const Area& area, const Area& other, int ranks, int rank, const Knobs& knobs) {
  const auto way_of = [&](const Area& a) {
    return Way(a, rank, knobs, scatter_turn(a.owner, ranks, rank), knobs.own_shift);
  };
  const Way way = way_of(area), ahead_of = way_of(other);
  const bool first = way.turn() < ahead_of.turn();
  if (knobs.order != TileOrder::column_major) return first ? way.blocks() : 0;
  return way.blocks_before(ahead_of.step() + (first ? 1 : 0));
}

void for_each_gathered(const std::vector<Area>& areas, const std::vector<int>& arrival, int rank, const Knobs& knobs,
                       const BlockVisit& visit) {
  for_each(areas, rank, knobs, -knobs.own_shift, visit,
           [&](int owner) { return arrival[static_cast<std::size_t>(owner)]; });
}

}  // namespace imbrex::plan
