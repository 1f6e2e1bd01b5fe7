#include "plan/builder.hpp"

#include <utility>

#include "base/ceil_div.hpp"
#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/problem.hpp"

namespace imbrex::plan {
namespace {

// Matrices' sizes go by themselves.
std::string size_text(const Problem& p) {
  return problem::multiplies(p) ? fmt::format("{} x {} x {}", p.m, p.n, p.k) : problem::sizes_text(p);
}

}  // namespace

std::vector<Range> cut(std::int64_t total, std::int64_t piece) {
  std::vector<Range> ranges;
  ranges.reserve(static_cast<std::size_t>(base::ceil_div(total, piece)));
  for (std::int64_t begin = 0; begin < total; begin += piece) ranges.push_back({begin, std::min(piece, total - begin)});
  return ranges;
}

Range part_of(std::int64_t total, std::int64_t parts, std::int64_t index) {
  const std::int64_t begin = total * index / parts;
  return {begin, total * (index + 1) / parts - begin};
}

ClusterMode cluster_mode(const Knobs& knobs) {
  if (knobs.cluster_k > 1) return ClusterMode::share_k;
  return knobs.cluster == 0 ? ClusterMode::any : knobs.cluster == 1 ? ClusterMode::single : ClusterMode::share_b;
}

Builder::Builder(const Problem& problem, Strategy strategy, const Knobs& knobs, int only)
    : shapes_(shapes_of(problem)), only_(only) {
  plan_.problem = problem;
  plan_.strategy = strategy;
  plan_.knobs = knobs;
  plan_.buffers = operand_buffers(problem);
  plan_.ranks.resize(static_cast<std::size_t>(problem.ranks));
}

int Builder::workspace(const std::string& name, Layout layout, Type type, std::int64_t rows, std::int64_t cols,
                       int copies) {
  IMBREX_EXPECTS(rows <= most_extent && cols <= most_extent,
                 "{} in tiles of {} x {}, {} ranks: the workspace '{}' would have {} x {} elements; rows and "
                 "columns are at most {}",
                 size_text(problem()), knobs().tile_m, knobs().tile_n, ranks(), name, rows, cols, most_extent);
  plan_.buffers.push_back({name, BufferRole::workspace, layout, type, rows, cols, copies});
  return base::narrow<int>(plan_.buffers.size() - 1, "buffers");
}

int Builder::signals(int rank, std::int64_t count) {
  if (count > most_signals - signals_) refuse_count(base::counted_sum(signals_, count), "signals", most_signals);
  signals_ += count;
  int& signals = plan_.ranks[static_cast<std::size_t>(rank)].signals;
  return std::exchange(signals, base::narrow<int>(signals + count, "signals"));
}

int Builder::queue(Engine engine, int workers) {
  Queue queue{engine, workers};
  if (engine != Engine::copy) queue.tile = {knobs().tile_m, knobs().tile_n};
  if (engine == Engine::compute) queue.cluster = cluster_mode(knobs());
  pairs_.clear();
  for (RankPlan& rank : plan_.ranks) rank.queues.push_back(queue);
  for (const RankPlan& rank : plan_.ranks)
    for (const Queue& each : rank.queues) pairs_.emplace_back(each);
  return base::narrow<int>(plan_.ranks.front().queues.size() - 1, "queues");
}

void Builder::keep_free(int queue, int sms) {
  for (RankPlan& rank : plan_.ranks) rank.queues[static_cast<std::size_t>(queue)].kept_free = sms;
}

void Builder::add(int rank, int queue, Task task) {
  if (!keeps(rank)) return skip(rank, queue, task.waits, std::move(task.posts));
  finish_tile();
  task.mate = pairs(rank, queue).next(plan_, task, loads_are_free_);
  if (visit_ == nullptr) {
    expect_kept_task();
    tasks(rank, queue).push_back(std::move(task));
  } else {
    hand(place(rank, queue), task);
  }
}

void Builder::skip(int rank, int queue, const std::vector<Wait>& waits, std::vector<Post> posts) {
  finish_tile();
  std::erase_if(posts, [&](const Post& post) { return !keeps(post.rank); });
  if (visit_ != nullptr) {
    Task task = signal_task({}, std::move(posts));
    if (!waits.empty()) task.waits.push_back({waits.front().signal});
    if (!task.waits.empty() || !task.posts.empty()) hand(place(rank, queue), task);
    return;
  }
  auto& kept = tasks(rank, queue);
  if (kept.empty()) kept.push_back(signal_task({}, {}));
  if (kept.size() == 1 && !waits.empty()) kept.push_back(signal_task({{waits.front().signal}}, {}));
  kept.back().posts.insert(kept.back().posts.end(), posts.begin(), posts.end());
}

void Builder::reserve(int rank, int queue, std::size_t count) {
  if (!keeps(rank)) return;
  finish_tile();
  pairs(rank, queue).reserve(count);
  if (visit_ != nullptr) return;
  auto& kept = tasks(rank, queue);
  kept.reserve(kept.size() + count);
}

Counts Counts::times(std::int64_t ranks) const {
  const auto all = [&](std::int64_t count) { return base::counted_product(count, ranks); };
  return {all(tasks), all(parts), all(signals)};
}

void Builder::expect_handed(const Counts& counts) const {
  if (counts.signals > most_signals) refuse_count(counts.signals, "signals", most_signals);
  if (counts.tasks > most_handed_tasks) refuse_count(counts.tasks, "tasks", most_handed_tasks);
}

void Builder::expect_kept(const Counts& counts) const {
  if (counts.tasks > most_kept_tasks) refuse_count(counts.tasks, "tasks", most_kept_tasks);
  expect_handed(counts);
  if (counts.parts > most_kept_parts) refuse_count(counts.parts, "waits, posts and regions", most_kept_parts);
}

void Builder::refuse_count(std::int64_t count, const char* what, std::int64_t most) const {
  const std::string text = count == base::uncountable ? "more than 2^63" : fmt::format("{}", count);
  throw Error(ErrorCode::invalid_input,
              fmt::format("{} in tiles of {} x {}, {} ranks: a plan of {} {}, more than {} {}; larger tiles, larger "
                          "comm_rows, and fewer k_slices, chunks and shares of K (split_k) make fewer",
                          size_text(problem()), knobs().tile_m, knobs().tile_n, ranks(), text, what, most, what));
}

}  // namespace imbrex::plan
