// Which of a queue's tasks the two blocks of a cluster take together.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "execute/cuda/tables/translate.hpp"

namespace imbrex::cuda {

/// One queue's, in its order. Pairs keep what the checker proves for workers that take tasks one by one: of a queue's
/// unfinished tasks, the first is at the head of its blocks, or its mate is one that always finishes. So a task's mate
/// is its neighbour, or a later tile without waits that shares its columns. A pair loads together: a mate must not wait
/// for loads that hang on tiles. Blocks that share tiles' K take a tile together, and two of other tasks.
class Pairs {
 public:
  /// Pairs go to the end of `table`, which has the tasks' waits. `free`: by signal, whether those who wait for it wait
  /// for no tile.
  Pairs(RankTable& table, const std::vector<bool>& free, const TileShape& shape)
      : table_(table), free_(free), shape_(shape) {}
  /// Where the queue's next task is to be written, before add.
  TaskEntry& next();
  void add();
  /// Pairs those left.
  void finish();

 private:
  // Further ahead than this, mates would lose the order that the plan wants.
  static constexpr std::size_t window = 96;

  const TaskEntry& at(std::size_t i) const { return entries_[i % window]; }
  bool taken(std::size_t i) const { return taken_[i % window]; }
  void take(std::size_t i);
  void pair_first();
  std::size_t mate_of_first() const;
  bool pairable(const TaskEntry& x, const TaskEntry& y) const;
  void share_k(TaskEntry& first, TaskEntry& second);

  // NOTE: a copy: of what it knows to be zero, the compiler fills memory with an instruction that takes twice as long.
  TaskEntry blank_{};
  RankTable& table_;
  const std::vector<bool>& free_;
  const TileShape& shape_;
  std::array<TaskEntry, window> entries_;
  std::array<bool, window> taken_;
  std::size_t begin_ = 0, end_ = 0;
};

}  // namespace imbrex::cuda
