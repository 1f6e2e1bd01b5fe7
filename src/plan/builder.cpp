#include "plan/builder.hpp"

#include "base/check.hpp"

namespace imbrex::plan {

std::vector<Range> cut(std::int64_t total, std::int64_t piece) {
  std::vector<Range> ranges;
  for (std::int64_t begin = 0; begin < total; begin += piece) ranges.push_back({begin, std::min(piece, total - begin)});
  return ranges;
}

Range part_of(std::int64_t total, int parts, int index) {
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
  const Type type = problem.type, result = output_type(type);
  plan_.buffers = {
      {"a", BufferRole::input, Layout::row_major, type, shapes_.a.rows, shapes_.a.cols, 1},
      {"b", BufferRole::input, b_layout(problem), type, shapes_.b.rows, shapes_.b.cols, 1},
      {"out", BufferRole::output, Layout::row_major, result, shapes_.out.rows, shapes_.out.cols, 1},
  };
  if (problem.bias)
    plan_.buffers.push_back({"bias", BufferRole::input, Layout::row_major, result, 1, shapes_.out.cols, 1});
  if (problem.scales != Scales::none)
    for (const auto& [name, extent] : {std::pair{"a_scale", shapes_.a_scale}, {"b_scale", shapes_.b_scale}})
      plan_.buffers.push_back({name, BufferRole::input, Layout::row_major, Type::fp32, extent.rows, extent.cols, 1});
  plan_.ranks.resize(static_cast<std::size_t>(problem.ranks));
}

int Builder::workspace(const std::string& name, Layout layout, Type type, std::int64_t rows, std::int64_t cols,
                       int copies) {
  plan_.buffers.push_back({name, BufferRole::workspace, layout, type, rows, cols, copies});
  return static_cast<int>(plan_.buffers.size()) - 1;
}

int Builder::signals(int rank, int count) {
  int& signals = plan_.ranks[static_cast<std::size_t>(rank)].signals;
  signals += count;
  return signals - count;
}

int Builder::queue(Engine engine, int workers) {
  Queue queue{engine, workers};
  if (engine != Engine::copy) queue.tile = {knobs().tile_m, knobs().tile_n};
  if (engine == Engine::compute) queue.cluster = cluster_mode(knobs());
  for (RankPlan& rank : plan_.ranks) rank.queues.push_back(queue);
  return static_cast<int>(plan_.ranks.front().queues.size()) - 1;
}

void Builder::add(int rank, int queue, Task task) {
  if (!keeps(rank)) return skip(rank, queue, task.waits, std::move(task.posts));
  if (visit_ == nullptr) {
    expect_room(++kept_);
    tasks(rank, queue).push_back(std::move(task));
  } else {
    hand_tile();
    hand(place(rank, queue), task);
  }
}

void Builder::skip(int rank, int queue, const std::vector<Wait>& waits, std::vector<Post> posts) {
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
  if (!keeps(rank) || visit_ != nullptr) return;
  expect_room(kept_ + static_cast<std::int64_t>(count));
  auto& kept = tasks(rank, queue);
  kept.reserve(kept.size() + count);
}

void Builder::expect_room(std::int64_t tasks) const {
  IMBREX_EXPECTS(tasks <= most_kept_tasks,
                 "{} x {} x {} in tiles of {} x {}, {} ranks: a plan of more than {} tasks; larger tiles make fewer",
                 problem().m, problem().n, problem().k, knobs().tile_m, knobs().tile_n, ranks(), most_kept_tasks);
}

}  // namespace imbrex::plan
