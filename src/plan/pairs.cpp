#include "plan/pairs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "plan/builder.hpp"

namespace imbrex::plan {
namespace {

std::string_view name_of(PairSide::Kind kind) {
  constexpr std::string_view names[] = {"tile", "reduction", "copy", "signal", "block"};
  return names[static_cast<std::size_t>(kind)];
}

}  // namespace

namespace {

// NOTE: where it lies. What has just been written field by field cannot be copied in wider pieces at once.
void fill(PairSide& side, const Plan& frame, const Task& task) {
  if (const auto* tile = std::get_if<Tile>(&task.work)) {
    side.kind = PairSide::Kind::tile;
    side.wide = false;
    side.slots = 0;
    side.a_col = tile->a.col;
    side.b = tile->b;
    for (const Region& add : tile->adds) {
      if (is_bias(frame.problem, add)) continue;
      ++side.slots;
      side.wide = side.wide || frame.buffers[static_cast<std::size_t>(add.buffer)].type == Type::fp32;
    }
  } else if (const auto* transfer = std::get_if<Transfer>(&task.work)) {
    side.kind = transfer->from.empty() ? PairSide::Kind::signal : PairSide::Kind::copy;
  } else if (std::holds_alternative<Block>(task.work)) {
    side.kind = PairSide::Kind::block;
  } else {
    side.kind = PairSide::Kind::reduction;
  }
}

}  // namespace

PairSide side_of(const Plan& frame, const Task& task) {
  PairSide side;
  fill(side, frame, task);
  return side;
}

std::string difference(const PairSide& first, const PairSide& mate) {
  if (first.kind != mate.kind)
    return fmt::format("one is a {}, the other a {}", name_of(first.kind), name_of(mate.kind));
  if (first.kind == PairSide::Kind::block) return "blocks form no pairs";
  if (first.b != mate.b)
    return fmt::format("one multiplies by rows {}+{} cols {}+{} of B, the other by rows {}+{} cols {}+{}", first.b.row,
                       first.b.rows, first.b.col, first.b.cols, mate.b.row, mate.b.rows, mate.b.col, mate.b.cols);
  if (first.a_col != mate.a_col)
    return fmt::format("one multiplies columns of A from {} on, the other from {} on", first.a_col, mate.a_col);
  const auto slots = [](const PairSide& side) { return fmt::format("{}{}", side.slots, side.wide ? " of fp32" : ""); };
  return fmt::format("slots that they add: {}, and {}", slots(first), slots(mate));
}

void PairChoice::begin() {
  count_ = 0;
  if (known_) return;
  mates_.clear();
  place_ = 0;
  oldest_ = last_ = newest_ = none;
}

int PairChoice::choose(const Plan& frame, const Task& task, bool loads_are_free) {
  if (window_ == nullptr) window_ = std::make_unique<Window>();
  const int place = place_;
  place_ = place + 1 == pair_window ? 0 : place + 1;
  // Who stood here is too far behind by now.
  if (oldest_ == place) remove(place);
  if (newest_ == place) newest_ = none;
  PairSide& side = window_->side[static_cast<std::size_t>(place)];
  fill(side, frame, task);
  const bool tile = side.kind == PairSide::Kind::tile;
  if (tile && !tiles_) {
    newest_ = none;
    return 0;
  }
  int first = none;
  if (tile && task.waits.empty()) {
    for (first = oldest_; first != none; first = window_->after[static_cast<std::size_t>(first)])
      if (alike(window_->side[static_cast<std::size_t>(first)], side)) break;
  } else if (newest_ != none && alike(window_->side[static_cast<std::size_t>(newest_)], side)) {
    const bool loads = std::any_of(task.waits.begin(), task.waits.end(),
                                   [](const Wait& wait) { return wait.point == WaitPoint::load; });
    if (!tile || !loads || loads_are_free) first = newest_;
  }
  if (first == none) {
    if (tile) append(place);
    newest_ = place;
    return 0;
  }
  if (tile) remove(first);
  if (newest_ == first) newest_ = none;
  return tasks_between(first, place);
}

void PairChoice::append(int place) {
  window_->before[static_cast<std::size_t>(place)] = last_;
  window_->after[static_cast<std::size_t>(place)] = none;
  (last_ == none ? oldest_ : window_->after[static_cast<std::size_t>(last_)]) = place;
  last_ = place;
}

void PairChoice::remove(int place) {
  const int before = window_->before[static_cast<std::size_t>(place)],
            after = window_->after[static_cast<std::size_t>(place)];
  (before == none ? oldest_ : window_->after[static_cast<std::size_t>(before)]) = after;
  (after == none ? last_ : window_->before[static_cast<std::size_t>(after)]) = before;
}

}  // namespace imbrex::plan
