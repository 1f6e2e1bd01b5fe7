#include "execute/cuda/tables/pairs.hpp"

#include <algorithm>

namespace imbrex::cuda {

TaskEntry& Pairs::next() { return entries_[end_ % window] = blank_; }

void Pairs::add() {
  taken_[end_++ % window] = false;
  if (end_ - begin_ == window) pair_first();
}

void Pairs::finish() {
  while (begin_ < end_) pair_first();
}

void Pairs::take(std::size_t i) {
  taken_[i % window] = true;
  while (begin_ < end_ && taken(begin_)) ++begin_;
}

void Pairs::pair_first() {
  const std::size_t first = begin_, mate = mate_of_first();
  table_.tasks.push_back(at(first));
  if (mate < end_) {
    table_.tasks.push_back(at(mate));
    // Blocks that load together use their stages in step.
    TaskEntry* pair = &table_.tasks.back() - 1;
    pair[0].slot_stages = pair[1].slot_stages = std::max(pair[0].slot_stages, pair[1].slot_stages);
    take(mate);
  } else {
    TaskEntry second = at(first);
    second.kind = second.kind == TaskKind::tile ? TaskKind::partner : TaskKind::none;
    const bool shared = second.kind == TaskKind::partner && shape_.sharing == Sharing::k;
    if (!shared) second.load_waits = 0;
    second.epilogue_waits = second.adds = second.stores = second.post_count = 0;
    second.bias = 0;
    if (shared) share_k(table_.tasks.back(), second);
    table_.partners += second.kind == TaskKind::partner;
    table_.tasks.push_back(second);
  }
  take(first);
}

std::size_t Pairs::mate_of_first() const {
  const TaskEntry& x = at(begin_);
  bool neighbour = true;
  for (std::size_t j = begin_ + 1; j < end_; ++j) {
    if (taken(j)) continue;
    const TaskEntry& y = at(j);
    if (pairable(x, y) && (neighbour || (y.kind == TaskKind::tile && y.load_waits + y.epilogue_waits == 0))) return j;
    neighbour = false;
    if (x.kind != TaskKind::tile) break;
  }
  return end_;
}

bool Pairs::pairable(const TaskEntry& x, const TaskEntry& y) const {
  if (x.kind != y.kind) return false;
  if (x.kind != TaskKind::tile) return true;
  if (shape_.sharing == Sharing::k) return false;
  if (x.b_col != y.b_col || x.k_begin != y.k_begin || x.k_end != y.k_end) return false;
  // What stages bring to one passes the other's by: they have the same of it, or one has no slots.
  if (x.adds > 0 && y.adds > 0 && (x.adds != y.adds || x.slot_stages != y.slot_stages)) return false;
  for (std::uint32_t w = 0; w < y.load_waits; ++w)
    if (!free_[table_.waits[y.waits + w].signal]) return false;
  return true;
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
