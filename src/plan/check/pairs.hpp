// The rules of pairs (Task::mate).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/pairs.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::plan {

/// Rules of the format for one queue's pairs, whose tasks come in order.
class PairRules {
 public:
  /// Takes the next task, whose regions are in bounds. Returns the rule that its mate breaks, or nothing.
  std::string add(const Plan& frame, const Queue& queue, const Task& task);

 private:
  struct Entry {
    PairSide side;
    bool paired = false;
  };
  std::vector<Entry> window_;  // places as of a PairChoice
  std::size_t count_ = 0;
};

/// Proves that pairs hold nothing up, whichever of them are run as pairs and whichever one by one, in a plan that
/// passed check_format and runs to its end with one worker a queue.
///
/// Suppose that some tasks never end, and take the one that such a worker would end first. All before it in its queue
/// have ended. Workers that are held up hold a pair whose first task has ended, and whose mate, a later task, has not:
/// no neighbour, so it waits for nothing, and nothing holds it up. So the task has been taken, and what it waits for
/// has happened. If it is the first tile of a pair, it also waits for what its mate loads, which only tasks post that
/// stand before all waits, tiles and collectives of their queues, and so always end.
std::optional<Finding> find_pair_fault(const Plan& plan);

}  // namespace imbrex::plan
