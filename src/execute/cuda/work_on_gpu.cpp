#include "execute/cuda/work_on_gpu.hpp"

#include <optional>

#include "execute/cuda/embedding/bags_on_gpu.hpp"

namespace imbrex::cuda {

const WorkOnGpu* work_on_gpu(WorkKind kind) {
  static const WorkOnGpu all[] = {bags_on_gpu()};
  for (const WorkOnGpu& each : all)
    if (each.kind == kind) return &each;
  return nullptr;
}

const WorkOnGpu* only_work(const Plan& plan) {
  std::optional<WorkKind> found;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks) {
        const auto* block = std::get_if<Block>(&task.work);
        if (queue.engine != Engine::compute) return nullptr;
        if (block == nullptr) continue;
        if (found.value_or(block->kind) != block->kind) return nullptr;
        found = block->kind;
      }
  return found ? work_on_gpu(*found) : nullptr;
}

}  // namespace imbrex::cuda
