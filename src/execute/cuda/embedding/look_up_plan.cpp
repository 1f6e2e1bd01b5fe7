#include "execute/cuda/embedding/look_up_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "base/narrow.hpp"
#include "embedding/cuda/look_up_args.hpp"
#include "plan/bags.hpp"
#include "problem/embedding.hpp"

namespace imbrex::cuda {

std::string refusal_of_bags(const Plan& plan, int rank, const Block& block) {
  const problem::OwnShards own(plan.problem.tables, rank);
  const bool whole = block.shares == 1 && block.args[2] == 0 && std::cmp_equal(block.args[3], own.count());
  const bool one = block.stores.size() == 1 && block.stores[0].row == 0 && block.stores[0].col == 0;
  if (!whole || !one) return "library queues look up all of a rank's shards in blocks without shares, with one store";
  const Region& to = block.stores[0].to;
  const Buffer& buffer = plan.buffers[static_cast<std::size_t>(to.buffer)];
  if (to.rank != rank || to.rows != block.args[1] || to.cols != own.cols() || buffer.type != plan.problem.type ||
      buffer.role != BufferRole::workspace || to.col != 0)
    return "library queues look up bags into a workspace of the rank, of the output's type, from its first column on";
  return {};
}

LookUpPlan look_up_plan(const Plan& plan) {
  Knobs knobs;
  const auto& queues = plan.ranks.front().queues;
  if (!queues.empty() && queues.front().tile.rows > 0)
    knobs.tile_m = queues.front().tile.rows, knobs.tile_n = queues.front().tile.cols;
  const std::int64_t part = plan.problem.m / plan.problem.ranks;
  const Plan made = make_plan(plan.problem, Strategy::fused, knobs);
  IMBREX_EXPECTS(plan.ranks == made.ranks && plan.buffers == made.buffers,
                 "the CUDA executor looks bags up in compute queues whose tasks are those of strategy fused, in blocks "
                 "of {} rows; these are others",
                 knobs.tile_m);
  const std::int64_t slices = base::ceil_div(part, knobs.tile_m);
  IMBREX_EXPECTS(slices <= std::int64_t{embedding::most_slices},
                 "knob tile_m = {}: {} blocks of each rank's {} rows; the kernel of lookups takes up to {}",
                 knobs.tile_m, slices, part, embedding::most_slices);
  return {std::min(knobs.tile_m, part), base::narrow<std::int32_t>(slices, "slices")};
}

void expect_look_ups(const Plan& plan) { static_cast<void>(look_up_plan(plan)); }

}  // namespace imbrex::cuda
