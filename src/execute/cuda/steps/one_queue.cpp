#include "execute/cuda/steps/one_queue.hpp"

#include <algorithm>
#include <utility>

#include "base/narrow.hpp"
#include "imbrex/error.hpp"
#include "plan/check/graph.hpp"

namespace imbrex::cuda {
namespace {

bool is_one(const RankPlan& rank) {
  return rank.queues.empty() || (rank.queues.size() == 1 && rank.queues.front().engine == Engine::compute);
}

}  // namespace

OneQueue in_one_queue(std::shared_ptr<const Plan> plan, int rank) {
  if (std::all_of(plan->ranks.begin(), plan->ranks.end(), is_one)) return {std::move(plan), {}};
  plan::Graph graph(*plan);
  if (const auto fault = graph.find_deadlock()) throw Error(ErrorCode::invalid_input, fault->message);
  auto made = std::make_shared<Plan>(*plan);
  for (RankPlan& each : made->ranks) {
    each.queues = {Queue{}};  // no worker is reserved, and no pair is left
  }
  OneQueue result;
  for (const plan::TaskId id : graph.order()) {
    const plan::TaskNode& node = graph.nodes()[id];
    Task task = *node.task;
    task.mate = 0;
    made->ranks[base::index(node.rank)].queues.front().tasks.push_back(std::move(task));
    if (node.rank == rank) result.from.push_back({node.rank, node.queue, node.index});
  }
  result.plan = std::move(made);
  return result;
}

}  // namespace imbrex::cuda
