#include "execute/cuda/embedding/look_up_plan.hpp"

#include <algorithm>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/bags.hpp"

namespace imbrex::cuda {
namespace {

constexpr std::int64_t most_slices = 64;

const Block* block_of(const Task& task) { return std::get_if<Block>(&task.work); }

}  // namespace

bool looks_up(const Plan& plan) {
  bool found = false;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks) {
        const Block* block = block_of(task);
        if (queue.engine != Engine::compute || (block != nullptr && block->kind != plan::bags_kind)) return false;
        found = found || block != nullptr;
      }
  return found;
}

LookUpPlan look_up_plan(const Plan& plan) {
  Knobs knobs;
  knobs.tile_m = 1;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks)
        if (const Block* block = block_of(task)) knobs.tile_m = std::max(knobs.tile_m, block->args[1]);
  const std::int64_t part = plan.problem.m / plan.problem.ranks;
  const Plan made = make_plan(plan.problem, Strategy::fused, knobs);
  IMBREX_EXPECTS(plan.ranks == made.ranks && plan.buffers == made.buffers,
                 "the CUDA executor looks bags up in compute queues whose tasks are those of strategy fused, in blocks "
                 "of {} rows; these are others",
                 knobs.tile_m);
  const std::int64_t slices = base::ceil_div(part, knobs.tile_m);
  IMBREX_EXPECTS(slices <= most_slices,
                 "knob tile_m = {}: {} blocks of each rank's {} rows; the kernel of lookups takes up to {}",
                 knobs.tile_m, slices, part, most_slices);
  return {knobs.tile_m, base::narrow<std::int32_t>(slices, "slices")};
}

}  // namespace imbrex::cuda
