#include "execute/cuda/tables/table_survey.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.hpp"
#include "imbrex/error.hpp"
#include "plan/check/format.hpp"
#include "plan/problem.hpp"

namespace imbrex::cuda {
namespace {

bool b_by_columns(const Problem& problem) { return plan::layout_of_b(problem) == Layout::column_major; }

// A tile: its mate before it, if it has one, is a tile, too, and was counted as alone.
void count(TileCounts& tiles, const Task& task) {
  ++tiles.all;
  task.mate == 0 ? ++tiles.alone : --tiles.alone;
}

}  // namespace

// Loads of B by rows begin at whole 16 bytes of one. B by columns has a row of memory for each, but the kernels read
// the bias and the scales by twos.
std::int64_t column_step(const Problem& problem) {
  return b_by_columns(problem) ? 2 : static_cast<std::int64_t>(16 / size_of(problem.type));
}

std::string refusal_of_tma(const Problem& problem) {
  const RankShapes shapes = shapes_of(problem);
  const auto step = static_cast<std::int64_t>(16 / size_of(problem.type));
  const bool by_columns = b_by_columns(problem);
  const std::int64_t col_step = column_step(problem);
  if (problem.type == Type::fp32) return "fp32 operands";
  if (shapes.depth % step != 0)
    return fmt::format("rows of A of {} elements, not a multiple of {}", shapes.depth, step);
  for (int product = 0; product < plan::count_products(problem); ++product)
    if (const std::int64_t cols = plan::cols_of(problem, product); cols % col_step != 0)
      return fmt::format("{} of {} {}, not a multiple of {}", by_columns ? "results" : "rows of B", cols,
                         by_columns ? "columns" : "elements", col_step);
  for (const OperandInfo& info : operands_of(problem))
    if (info.role == OperandRole::input && info.pitch % step != 0)
      return fmt::format("rows of {} that lie {} elements apart, not a multiple of {}", info.name, info.pitch, step);
  return {};
}

TableSurvey::TableSurvey(const Plan& frame, int rank)
    : plan_(&frame),
      rank_(rank),
      queues_(frame.ranks[static_cast<std::size_t>(rank)].queues),
      column_step_(column_step(frame.problem)),
      depth_(shapes_of(frame.problem).depth) {}

void TableSurvey::add(const plan::TaskPlace& place, const Task& task) {
  const auto queue = static_cast<std::size_t>(place.queue);
  const auto* tile = std::get_if<Tile>(&task.work);
  if (tile != nullptr) {
    largest_ = {std::max(largest_.rows, tile->a.rows), std::max(largest_.cols, tile->b.cols)};
    whole_depth_ = whole_depth_ && tile->a.cols == depth_;
    // A load that begins inside 16 bytes of a row is an illegal instruction (seen on an H200).
    if (odd_column_ == 0 && (tile->b.col & (column_step_ - 1)) != 0) odd_column_ = tile->b.col;
  }
  if (place.rank != rank_) return;
  if (queues_[queue].engine != Engine::compute) {
    copies_ = copies_ || queues_[queue].engine == Engine::copy;
    return;
  }
  if (tile != nullptr) count(tiles_, task);
  ++sizes_.tasks;
  sizes_.waits += task.waits.size();
  sizes_.posts += task.posts.size();
  if (tile != nullptr)
    sizes_.regions += tile->adds.size() + tile->stores.size();
  else if (const auto* reduction = std::get_if<Reduction>(&task.work))
    sizes_.regions += reduction->from.size() + reduction->to.size();
  else if (const auto* block = std::get_if<Block>(&task.work))
    sizes_.regions += block->reads.size() + block->stores.size();
  else
    sizes_.regions += 2;
}

ClusterMode TableSurvey::cluster() const {
  const Queue* first = nullptr;
  for (std::size_t q = 0; q < queues_.size(); ++q) {
    const Queue& queue = queues_[q];
    if (queue.engine != Engine::compute) continue;
    if (first == nullptr) first = &queue;
    IMBREX_EXPECTS(queue.cluster == first->cluster,
                   "rank {} queue {}: cluster {}, where another of its compute queues has {}; one kernel runs them all",
                   rank_, q, name_of(queue.cluster), name_of(first->cluster));
  }
  return first == nullptr ? ClusterMode::any : first->cluster;
}

int TableSurvey::kept_free() const {
  int sms = 0;
  for (const Queue& queue : queues_) sms += queue.kept_free;
  return sms;
}

std::string TableSurvey::refusal_of_tma() const {
  if (std::string why = cuda::refusal_of_tma(plan_->problem); !why.empty()) return why;
  return odd_column_ == 0 ? ""
                          : fmt::format("a tile from column {} on, not a multiple of {}", odd_column_, column_step_);
}

Surveyed survey(plan::TaskStream& tasks, int rank) try {
  const Plan& frame = tasks.frame();
  plan::FormatCheck format(frame);
  execute::LayoutSurvey layout(frame);
  TableSurvey tables(frame, rank);
  const bool made = tasks.made();
  tasks.for_each([&](const plan::TaskPlace& place, const Task& task) {
    if (!made) format.add(place, task);
    layout.add(place, task);
    tables.add(place, task);
  });
  format.finish();
  return {execute::HeapLayout(frame, std::move(layout)), std::move(tables)};
} catch (const plan::Refused& refused) {
  throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", name_of(refused.finding.fault), refused.finding.message));
}

TableSurvey survey_of(const Plan& plan, int rank) {
  TableSurvey survey(plan, rank);
  plan::for_each_task(plan, [&](const plan::TaskPlace& place, const Task& task) { survey.add(place, task); });
  return survey;
}

TileCounts leading_tiles(const plan::TaskStream& tasks, const TableSurvey& survey,
                         const std::function<std::unique_ptr<plan::TaskStream>()>& leading) {
  if (survey.rank() == 0 || tasks.ranks_are_alike()) return survey.tiles();
  const std::unique_ptr<plan::TaskStream> first = leading();
  const auto& queues = first->frame().ranks.front().queues;
  TileCounts tiles;
  first->for_each([&](const plan::TaskPlace& place, const Task& task) {
    if (place.rank == 0 && queues[static_cast<std::size_t>(place.queue)].engine == Engine::compute &&
        std::holds_alternative<Tile>(task.work))
      count(tiles, task);
  });
  return tiles;
}

Extent largest_tile(const Plan& plan) { return survey_of(plan, 0).largest_tile(); }

std::string refusal_of_tma(const Plan& plan) { return survey_of(plan, 0).refusal_of_tma(); }

}  // namespace imbrex::cuda
