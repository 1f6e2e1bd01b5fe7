// Which tasks of a compute queue form pairs (Task::mate): what the two must have in common, and which ones strategies
// choose.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/narrow.hpp"
#include "imbrex/plan.hpp"
#include "plan/limits.hpp"

namespace imbrex::plan {

/// What a task's mate must have, too.
struct PairSide {
  enum class Kind : std::uint8_t { tile, reduction, copy, signal, block };  // signal: a transfer of nothing

  Kind kind = Kind::tile;
  bool wide = false;        // a tile that adds slots of fp32
  std::uint32_t slots = 0;  // that a tile adds: the bias is none
  std::int64_t a_col = 0;   // tiles: the first column of A
  Region b{};
};

/// The side that a task on a compute queue makes.
PairSide side_of(const Plan& frame, const Task& task);

/// Whether two tasks can form a pair. What stages of a kernel prefetch for one tile passes the other's by: so both have
/// equally many slots, or one has none.
inline bool alike(const PairSide& x, const PairSide& y) {
  if (x.kind != y.kind || x.kind == PairSide::Kind::block) return false;
  if (x.kind != PairSide::Kind::tile) return true;
  return x.b == y.b && x.a_col == y.a_col && (x.slots == 0 || y.slots == 0 || (x.slots == y.slots && x.wide == y.wide));
}

/// Why two tasks that are not alike are no pair: "one is a tile, the other a reduction".
std::string difference(const PairSide& first, const PairSide& mate);

/// Places of the tasks that a task may be the mate of, and of its own: of the queue's task i, i % pair_window.
inline constexpr int pair_window = most_mate + 1;

/// How many tasks lie between, of places in that ring.
inline int tasks_between(int first, int mate) { return mate - first + (mate < first ? pair_window : 0); }

/// Chooses a queue's pairs, one task after another. Each task that has no mate yet takes the first later one that it
/// may: its neighbour, which is the next one that no earlier task has taken; or, if both are tiles, one that waits for
/// nothing. So of a queue's unfinished tasks, the first is at the head of its workers, or its mate is one that always
/// finishes, as check proves. Tiles that two workers share have no mates.
class PairChoice {
 public:
  explicit PairChoice(const Queue& queue)
      : pairs_(queue.engine == Engine::compute && queue.cluster != ClusterMode::single),
        tiles_(queue.cluster != ClusterMode::share_k) {}

  /// Before the first task, once more: the same tasks come again. If all have come before, their mates are known.
  void begin();
  /// So many tasks come.
  void reserve(std::size_t count) {
    if (pairs_) mates_.reserve(mates_.size() + count);
  }
  /// Behind the last one.
  void end() { known_ = true; }

  /// Task::mate of the next task. `loads_are_free`: what tiles wait for before they load hangs on no tile.
  int next(const Plan& frame, const Task& task, bool loads_are_free) {
    if (!pairs_) return 0;
    if (known_) return mates_[count_++];
    mates_.push_back(base::narrow<std::uint8_t>(choose(frame, task, loads_are_free), "tasks to a mate"));
    return mates_.back();
  }

 private:
  static constexpr int none = -1;

  // Tiles without mates, the oldest first, in the ring of the last tasks.
  struct Window {
    std::array<PairSide, pair_window> side;
    std::array<int, pair_window> before, after;
  };

  int choose(const Plan& frame, const Task& task, bool loads_are_free);
  void append(int place);
  void remove(int place);

  bool pairs_, tiles_;
  bool known_ = false;
  std::size_t count_ = 0;            // tasks that have come again
  std::vector<std::uint8_t> mates_;  // by task
  std::unique_ptr<Window> window_;
  int place_ = 0;                    // of the next task
  int oldest_ = none, last_ = none;  // tiles without mates
  int newest_ = none;                // the last task that was no mate, unless it has one
};

}  // namespace imbrex::plan
