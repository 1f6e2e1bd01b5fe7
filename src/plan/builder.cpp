#include "plan/builder.hpp"

namespace imbrex {

std::vector<Range> cut(std::int64_t total, std::int64_t piece) {
  std::vector<Range> ranges;
  for (std::int64_t begin = 0; begin < total; begin += piece) ranges.push_back({begin, std::min(piece, total - begin)});
  return ranges;
}

Range part_of(std::int64_t total, int parts, int index) {
  const std::int64_t begin = total * index / parts;
  return {begin, total * (index + 1) / parts - begin};
}

Builder::Builder(const Problem& problem, Strategy strategy, const Knobs& knobs) : shapes_(shapes_of(problem)) {
  plan_.problem = problem;
  plan_.strategy = strategy;
  plan_.knobs = knobs;
  const Type type = problem.type;
  plan_.buffers = {
      {"a", BufferRole::input, Layout::row_major, type, shapes_.a.rows, shapes_.a.cols, 1},
      {"b", BufferRole::input, Layout::row_major, type, shapes_.b.rows, shapes_.b.cols, 1},
      {"out", BufferRole::output, Layout::row_major, type, shapes_.out.rows, shapes_.out.cols, 1},
  };
  if (problem.bias)
    plan_.buffers.push_back({"bias", BufferRole::input, Layout::row_major, type, 1, shapes_.out.cols, 1});
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
  for (RankPlan& rank : plan_.ranks) rank.queues.push_back({engine, workers, {}});
  return static_cast<int>(plan_.ranks.front().queues.size()) - 1;
}

Task& Builder::add(int rank, int queue, Task task) {
  auto& tasks = plan_.ranks[static_cast<std::size_t>(rank)].queues[static_cast<std::size_t>(queue)].tasks;
  tasks.push_back(std::move(task));
  return tasks.back();
}

}  // namespace imbrex
