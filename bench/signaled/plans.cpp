#include "signaled/plans.hpp"

#include <algorithm>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "plan/operand_buffers.hpp"
#include "plan/problem.hpp"

namespace imbrex::bench {
namespace {

Queue free_sms(int kept) {
  Queue queue;
  queue.engine = Engine::library;
  queue.kept_free = kept;
  return queue;
}

std::uint32_t number(std::int64_t value) { return static_cast<std::uint32_t>(value); }

Plan packed_plan(const SignaledProduct& product) {
  Problem problem = product.problem;
  problem.packed = plan::packed_blocks(problem, product.knobs);
  return make_plan(problem, Strategy::signaled, product.knobs);
}

// Posts of the tiles in the plan's order, to signals from `first` on. Returns each group's rows of the packed output.
std::vector<std::int64_t> add_posts(Plan& plan, const std::vector<std::int64_t>& group_tiles) {
  RankPlan& rank = plan.ranks.front();
  const int first = rank.signals;
  rank.signals += static_cast<int>(group_tiles.size());
  std::vector<std::int64_t> rows(group_tiles.size());
  std::size_t group = 0;
  std::int64_t in_group = 0;
  for (Queue& queue : rank.queues)
    for (Task& task : queue.tasks) {
      const auto& tile = std::get<Tile>(task.work);
      IMBREX_EXPECTS(group < group_tiles.size(), "groups of fewer tiles than the plan has");
      task.posts.push_back({0, first + static_cast<int>(group)});
      rows[group] += tile.stores.front().to.rows;
      if (++in_group == group_tiles[group]) ++group, in_group = 0;
    }
  IMBREX_EXPECTS(group == group_tiles.size(), "groups of more tiles than the plan has");
  return rows;
}

}  // namespace

std::int64_t SignaledProduct::tiles() const {
  return base::ceil_div(problem.m, knobs.tile_m) * base::ceil_div(problem.n, knobs.tile_n);
}

std::vector<std::int64_t> tiles_of_waves(const std::vector<std::int64_t>& waves, std::int64_t workers,
                                         std::int64_t tiles) {
  std::vector<std::int64_t> sizes;
  std::int64_t begin = 0, end = 0;
  for (const std::int64_t count : waves) {
    end = std::min(tiles, end + count * workers);
    sizes.push_back(end - begin);
    begin = end;
  }
  return sizes;
}

Plan alone(const SignaledProduct& product) {
  Plan plan = make_plan(product.problem, Strategy::signaled, product.knobs);
  plan.ranks.front().queues.push_back(free_sms(product.kept_free));
  return plan;
}

Plan with_signals(const SignaledProduct& product, const std::vector<std::int64_t>& group_tiles) {
  Plan plan = packed_plan(product);
  add_posts(plan, group_tiles);
  plan.ranks.front().queues.push_back(free_sms(product.kept_free));
  return plan;
}

Plan with_collectives(const SignaledProduct& product, const std::vector<std::int64_t>& group_tiles) {
  Plan plan = packed_plan(product);
  const int first = plan.ranks.front().signals, workspace = static_cast<int>(plan.buffers.size());
  Buffer partial = plan.buffers[plan::buffer_out];
  partial.name = "partial";
  partial.role = BufferRole::workspace;
  plan.buffers.push_back(partial);
  const std::vector<std::int64_t> rows = add_posts(plan, group_tiles);
  RankPlan& rank = plan.ranks.front();
  for (Queue& queue : rank.queues)
    for (Task& task : queue.tasks) std::get<Tile>(task.work).stores.front().to.buffer = workspace;
  Queue library = free_sms(product.kept_free);
  std::int64_t begin = 0;
  for (std::size_t g = 0; g < rows.size(); ++g) {
    const Region from{0, workspace, begin, 0, rows[g], partial.cols};
    Region to = from;
    to.buffer = plan::buffer_out;
    library.tasks.push_back({Collective{CollectiveKind::all_reduce, static_cast<int>(g), from, to},
                             {{first + static_cast<int>(g), number(group_tiles[g])}},
                             {}});
    begin += rows[g];
  }
  rank.queues.push_back(library);
  return plan;
}

}  // namespace imbrex::bench
