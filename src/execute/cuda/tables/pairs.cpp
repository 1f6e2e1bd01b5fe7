#include "execute/cuda/tables/pairs.hpp"

#include <algorithm>

namespace imbrex::cuda {

TaskEntry& Pairs::next(const Task& task) {
  Place& own = place(end_);
  if (end_ >= window) complete(own);
  if (task.mate > 0 && !ignored_) {
    Place& first = place(end_ - static_cast<std::size_t>(task.mate));
    first.alone = own.alone = false;
    first_ = &table_.tasks[first.entry];
    return first_[1];
  }
  own = {table_.tasks.size(), true};
  table_.tasks.push_back(blank_);
  table_.tasks.push_back(blank_);
  first_ = nullptr;
  return table_.tasks[own.entry];
}

void Pairs::add() {
  ++end_;
  // Blocks that load together use their stages in step.
  if (first_ != nullptr)
    first_[0].slot_stages = first_[1].slot_stages = std::max(first_[0].slot_stages, first_[1].slot_stages);
}

void Pairs::finish() {
  for (std::size_t task = end_ > window ? end_ - window : 0; task < end_; ++task) complete(place(task));
  end_ = 0;
}

void Pairs::complete(Place& place) {
  if (!place.alone) return;
  place.alone = false;
  TaskEntry &first = table_.tasks[place.entry], &second = table_.tasks[place.entry + 1];
  second = first;
  second.kind = first.kind == TaskKind::tile ? TaskKind::peer_cta : TaskKind::none;
  const bool shared = second.kind == TaskKind::peer_cta && shape_.sharing == Sharing::k;
  if (!shared) second.load_waits = 0;
  second.epilogue_waits = second.adds = second.stores = second.post_count = 0;
  second.bias = 0;
  if (shared) share_k(first, second);
  table_.peer_ctas += second.kind == TaskKind::peer_cta;
}

// Gives two copies of a tile the halves of its K: equally many slices, as the blocks' stages go in step. The last
// slice may lie beyond K, where loads bring zeros.
void Pairs::share_k(TaskEntry& first, TaskEntry& second) {
  const auto slice = static_cast<std::uint32_t>(shape_.slice);
  const std::uint32_t half = (first.k_end - first.k_begin + 2 * slice - 1) / (2 * slice) * slice;
  first.k_end = first.k_begin + half;
  second.k_begin = first.k_end;
  second.k_end = second.k_begin + half;
  // Waits count columns from the tile's first on.
  second.waits = static_cast<std::uint32_t>(table_.waits.size());
  for (std::uint32_t w = 0; w < second.load_waits; ++w) {
    WaitEntry wait = table_.waits[first.waits + w];
    wait.k_begin -= std::min(wait.k_begin, half);
    table_.waits.push_back(wait);
  }
}

}  // namespace imbrex::cuda
