// Products cut along K (Knobs::split_k): each block of a rank's product is several tiles, one for each share of K. All
// but the last store their sums to slots of their own rank, in fp32; the last one's tile adds them and then does what
// the block's only tile would do (fixed-split in Osama et al., "Stream-K", PPoPP 2023; here the sum's order is fixed,
// too).
#pragma once

#include <algorithm>

#include "base/narrow.hpp"
#include "plan/builder.hpp"

namespace imbrex::plan {

class SplitK {
 public:
  explicit SplitK(Builder& b);

  /// Slots and signals for that many blocks on every rank. Before any tile.
  void make_slots(std::int64_t blocks);

  std::size_t parts() const { return static_cast<std::size_t>(parts_); }
  bool splits() const { return parts_ > 1; }
  bool is_last(std::size_t part) const { return part + 1 == parts(); }
  /// Columns of A that a part multiplies.
  Range stretch(std::size_t part) const;

  /// Calls f(block, part) for all parts of blocks `begin` to `end`, in the order in which workers are to take them: the
  /// last part of a block comes about as much later as the others take, so that it rarely waits for them.
  template <typename F>
  void for_each_part(std::size_t begin, std::size_t end, F&& f) const {
    const std::size_t step = splits() ? blocks_at_once : end - begin;
    for (std::size_t first = begin; first < end; first += step)
      for (std::size_t part = 0; part < parts(); ++part)
        for (std::size_t block = first; block < std::min(first + step, end); ++block) f(block, part);
  }

  /// A new tile of a rank that the plan keeps, which multiplies a part of `a`, whole rows, by one of `cols` of the B in
  /// buffer `b`. What is not the last part stores and posts its sum; the last waits for the others.
  Task& add_tile(int rank, int queue, const Region& a, const Range& cols, std::size_t block, std::size_t part,
                 int b = buffer_b) const;

  /// Lets a block's last tile, to whose sum everything but the bias has been added, add the other parts before its own.
  void add_parts(int rank, std::size_t block, Tile& tile) const;

  /// What the last part of the block waits for, if anything.
  void add_waits(int rank, std::size_t block, std::vector<Wait>& waits) const;

 private:
  static constexpr std::size_t blocks_at_once = usual_sms;  // a wave

  std::size_t others() const { return parts() - 1; }
  Region slot(int rank, std::size_t block, std::size_t part, std::int64_t elements) const;

  // That counts the parts of a block which have ended.
  int signal(int rank, std::size_t block) const {
    return signals_[static_cast<std::size_t>(rank)] + base::narrow<int>(block, "signals");
  }

  Builder& b_;
  std::int64_t depth_, units_, parts_;  // units: k_units of the depth
  int slots_ = -1;
  std::vector<int> signals_;  // by rank: the first block's
};

inline Task& SplitK::add_tile(int rank, int queue, const Region& a, const Range& cols, std::size_t block,
                              std::size_t part, int b) const {
  const Range k = stretch(part);
  Task& task = b_.add_tile(rank, queue);
  auto& tile = std::get<Tile>(task.work);
  tile.a = b_.region(rank, a.buffer, a.row, a.rows, k.begin, k.size);
  tile.b = b_.region(rank, b, k.begin, k.size, cols.begin, cols.size);
  if (is_last(part)) {
    add_waits(rank, block, task.waits);
  } else {
    tile.stores.push_back({slot(rank, block, part, a.rows * cols.size)});
    task.posts.push_back({rank, signal(rank, block)});
  }
  return task;
}

}  // namespace imbrex::plan
