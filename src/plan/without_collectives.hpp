// A plan's products by themselves: what a library plan takes without its communication.
#pragma once

#include "imbrex/plan.hpp"

namespace imbrex::plan {

inline Plan without_collectives(Plan plan) {
  for (RankPlan& rank : plan.ranks)
    for (Queue& queue : rank.queues) {
      if (queue.engine == Engine::library) queue.tasks.clear();
      for (Task& task : queue.tasks) task.waits.clear(), task.posts.clear();
    }
  return plan;
}

}  // namespace imbrex::plan
