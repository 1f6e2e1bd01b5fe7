// Queues of a plan as one: an order in which one worker runs all tasks of a rank.
#pragma once

#include <memory>
#include <vector>

#include "imbrex/plan.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::cuda {

/// A plan in which each rank has one compute queue, and no other.
struct OneQueue {
  std::shared_ptr<const Plan> plan;
  std::vector<plan::TaskPlace> from;  ///< where the tasks of one rank stood; empty: where they stand now
};

/// The ranks' tasks in an order in which ranks that run one task after another get through, whatever queues they stand
/// in: that in which one worker a queue would. The plan has passed check_format, and its queues are of compute and copy
/// engines. Throws Error(invalid_input) where it cannot end. `rank`: the one whose places are told.
OneQueue in_one_queue(std::shared_ptr<const Plan> plan, int rank);

}  // namespace imbrex::cuda
