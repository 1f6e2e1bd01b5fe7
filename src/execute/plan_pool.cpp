#include "execute/plan_pool.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace imbrex::execute {

PlanPool::PlanPool(Allocate allocate, const PlanShare& first, std::uint64_t first_epoch)
    : allocate_(std::move(allocate)), first_epoch_(first_epoch), epoch_(first_epoch) {
  add(first, first_count());
}

void PlanPool::add(const PlanShare& half, std::uint32_t count) {
  Area area{half, allocate_(HeapLayout::bytes_of_halves(half)), {}};
  for (auto& counts : area.counts) counts.assign(half.counters, count);
  areas_.push_back(std::move(area));
}

std::size_t PlanPool::area_for(const PlanShare& share) const {
  std::size_t area = 0;
  while (area < areas_.size() && !areas_[area].half.holds(share)) ++area;
  return area;
}

std::size_t PlanPool::place(HeapLayout& layout) {
  const PlanShare share = layout.share();
  const std::size_t area = area_for(share);
  if (area == areas_.size()) {
    const PlanShare all = areas_.back().half.joined(share);
    // Halves begin where buffers may.
    add({std::max(HeapLayout::alignment, std::bit_ceil(all.bytes)), std::bit_ceil(all.counters)}, 0);
  }
  layout.lie_in_halves(areas_[area].half);
  return area;
}

void PlanPool::leave(std::size_t area, std::span<const std::uint32_t> posts) {
  std::vector<std::uint32_t>& counts = areas_[area].counts[epoch_ % 2];
  for (std::size_t signal = 0; signal < posts.size(); ++signal) counts[signal] += posts[signal];
  ++epoch_;
}

}  // namespace imbrex::execute
