// Where a queue's tasks lie in the table of a kernel whose blocks come in clusters of two.
#pragma once

#include <array>
#include <cstddef>

#include "execute/cuda/tables/translate.hpp"
#include "plan/pairs.hpp"

namespace imbrex::cuda {

/// Lays out one queue after another, in their order: a pair of the plan's side by side, where its first task stands;
/// any other task beside an empty one, or, where blocks share tiles' K, a tile beside its other half. Such blocks
/// ignore all pairs of a queue that may have pairs of tiles: that some run and others do not, is not proved sound.
class Pairs {
 public:
  /// Tasks go to the end of `table`, which has their waits.
  Pairs(RankTable& table, const TileShape& shape) : table_(table), shape_(shape) {}

  void begin(const Queue& queue) { ignored_ = shape_.sharing == Sharing::k && queue.cluster != ClusterMode::share_k; }
  /// Where the queue's next task is to be written, before add. It keeps the format's rules.
  TaskEntry& next(const Task& task);
  void add();
  /// Behind the queue's last task.
  void finish();

 private:
  struct Place {
    std::size_t entry = 0;
    bool alone = false;
  };

  static constexpr std::size_t window = plan::pair_window;

  Place& place(std::size_t task) { return places_[task % window]; }
  void complete(Place& place);
  void share_k(TaskEntry& first, TaskEntry& second);

  // NOTE: a copy: of what it knows to be zero, the compiler fills memory with an instruction that takes twice as long.
  TaskEntry blank_{};
  RankTable& table_;
  const TileShape& shape_;
  bool ignored_ = false;
  std::array<Place, window> places_;  // places of the last tasks: any of them may get a mate
  std::size_t end_ = 0;               // tasks that have come
  TaskEntry* first_ = nullptr;        // of the task that is being written
};

}  // namespace imbrex::cuda
