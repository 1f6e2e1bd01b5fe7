// A plan's tasks one after another. Who reads each of them once or twice, and keeps none, need not have them all in
// memory: to touch that for the first time takes longer than to make them again.
#pragma once

#include <functional>
#include <iterator>
#include <memory>

#include "imbrex/plan.hpp"

namespace imbrex::plan {

/// Where a task stands in its plan.
struct TaskPlace {
  int rank = 0, queue = 0;
  std::size_t index = 0;  ///< in its queue
};

/// The task is there until the call returns.
using TaskVisit = std::function<void(const TaskPlace& place, const Task& task)>;

/// Calls visit(place, task) for the tasks that lie in a plan, rank by rank and queue by queue.
template <typename F>
void for_each_task(const Plan& plan, F&& visit) {
  for (TaskPlace p; p.rank < std::ssize(plan.ranks); ++p.rank) {
    const auto& queues = plan.ranks[static_cast<std::size_t>(p.rank)].queues;
    for (p.queue = 0; p.queue < std::ssize(queues); ++p.queue) {
      const auto& tasks = queues[static_cast<std::size_t>(p.queue)].tasks;
      for (p.index = 0; p.index < tasks.size(); ++p.index) visit(p, tasks[p.index]);
    }
  }
}

class TaskStream {
 public:
  virtual ~TaskStream() = default;

  /// The plan, whose queues may be empty all the same.
  virtual const Plan& frame() const = 0;

  /// Whether a strategy makes the tasks, so that they keep the format's rules, and may be one rank's only.
  virtual bool made() const { return false; }

  /// Whether the plan's other ranks have the same tiles in the same order, except whose rows or columns they are, so
  /// that as many of them have mates. False where that is not known.
  virtual bool ranks_are_alike() const { return false; }

  /// Calls `visit` for every task: of each queue in its order, of a rank's compute queues one after the other. Each
  /// call brings the same tasks.
  virtual void for_each(const TaskVisit& visit) = 0;

  /// The plan with all tasks, which may have to be made first.
  virtual std::shared_ptr<const Plan> whole() const = 0;
};

/// The tasks of a plan that has them. `made`: make_plan made it.
std::unique_ptr<TaskStream> stored_tasks(std::shared_ptr<const Plan> plan, bool made = false);

/// The tasks of make_rank_plan's plan, in which other ranks' queues may have any number of the empty transfers that
/// carry posts. Made anew each time, where they do not come whole.
std::unique_ptr<TaskStream> make_rank_tasks(const Problem& problem, Strategy strategy, const Knobs& knobs, int rank);

}  // namespace imbrex::plan
