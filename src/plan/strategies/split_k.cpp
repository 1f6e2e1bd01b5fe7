#include "plan/strategies/split_k.hpp"

#include "base/ceil_div.hpp"

namespace imbrex::plan {

SplitK::SplitK(Builder& b)
    : b_(b),
      depth_(b.shapes().depth),
      units_(base::ceil_div(depth_, k_unit)),
      parts_(std::min<std::int64_t>(b.knobs().split_k, units_)) {}

// The last part, which waits for the others' sums, is none of the shorter ones.
Range SplitK::stretch(std::size_t part) const {
  if (!splits()) return {0, depth_};
  const Range of_units = part_of(units_, parts_, static_cast<std::int64_t>(part));
  const std::int64_t begin = of_units.begin * k_unit;
  return {begin, std::min(of_units.end() * k_unit, depth_) - begin};
}

void SplitK::make_slots(std::int64_t blocks) {
  if (!splits()) return;
  const Knobs& knobs = b_.knobs();
  const auto slots = static_cast<std::int64_t>(others());
  // One copy: a rank's epochs follow each other, and no other rank touches the slots.
  slots_ = b_.workspace("parts", Layout::fragment, Type::fp32, blocks * slots, knobs.tile_m * knobs.tile_n, 1);
  for (int rank = 0; rank < b_.ranks(); ++rank) signals_.push_back(b_.signals(rank, blocks));
}

Region SplitK::slot(int rank, std::size_t block, std::size_t part, std::int64_t elements) const {
  return b_.region(rank, slots_, static_cast<std::int64_t>(block * others() + part), 1, 0, elements);
}

void SplitK::add_parts(int rank, std::size_t block, Tile& tile) const {
  for (std::size_t part = 0; part < others(); ++part)
    tile.adds.insert(tile.adds.begin() + tile.own++, slot(rank, block, part, tile.a.rows * tile.b.cols));
}

void SplitK::add_waits(int rank, std::size_t block, std::vector<Wait>& waits) const {
  if (!splits()) return;
  waits.push_back({signal(rank, block), base::narrow<std::uint32_t>(others(), "shares of K"), WaitPoint::epilogue});
}

}  // namespace imbrex::plan
