// A plan's products by themselves: what a library plan takes without its communication.
#pragma once

#include "imbrex/plan.hpp"

namespace imbrex::program {

inline Plan without_collectives(Plan plan) {
  for (RankPlan& rank : plan.ranks)
    for (Queue& queue : rank.queues) {
      std::erase_if(queue.tasks, [](const Task& task) { return !std::holds_alternative<Product>(task.work); });
      for (Task& task : queue.tasks) task.waits.clear(), task.posts.clear();
    }
  return plan;
}

}  // namespace imbrex::program
