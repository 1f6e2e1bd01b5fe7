#include "support/edited_bags.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "plan/bags.hpp"
#include "problem/embedding.hpp"

namespace imbrex::test {
namespace {

bool is_block(const Task& task) { return std::holds_alternative<Block>(task.work); }
Block& block_of(Task& task) { return std::get<Block>(task.work); }

std::vector<Task>& tasks_of(Plan& plan, int rank) {
  return plan.ranks[static_cast<std::size_t>(rank)].queues.front().tasks;
}

// Every wait is for all that its signal receives.
Plan settled(Plan plan) {
  std::vector<std::vector<std::uint32_t>> posts;
  for (const RankPlan& rank : plan.ranks) posts.emplace_back(static_cast<std::size_t>(rank.signals));
  const auto for_all = [&](auto&& visit) {
    for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank)
      for (Queue& queue : plan.ranks[rank].queues)
        for (Task& task : queue.tasks) visit(rank, task);
  };
  for_all([&](std::size_t, const Task& task) {
    for (const Post& post : task.posts)
      ++posts[static_cast<std::size_t>(post.rank)][static_cast<std::size_t>(post.signal)];
  });
  for_all([&](std::size_t rank, Task& task) {
    for (Wait& wait : task.waits) wait.count = posts[rank][static_cast<std::size_t>(wait.signal)];
    std::erase_if(task.waits, [](const Wait& wait) { return wait.count == 0; });
  });
  return plan;
}

// Exchanges each block for what `split` makes of it.
Plan with_blocks(Plan plan, const std::function<std::vector<Task>(int rank, const Task&)>& split) {
  for (int rank = 0; rank < plan.problem.ranks; ++rank) {
    std::vector<Task> all;
    for (const Task& task : tasks_of(plan, rank)) {
      std::vector<Task> parts = is_block(task) ? split(rank, task) : std::vector<Task>{task};
      std::move(parts.begin(), parts.end(), std::back_inserter(all));
    }
    tasks_of(plan, rank) = std::move(all);
  }
  return settled(std::move(plan));
}

// Rows [begin, end) of a block, as a block.
Task rows_of(Task task, std::int64_t begin, std::int64_t end) {
  Block& block = block_of(task);
  block.args[0] += begin, block.args[1] = end - begin;
  for (Store& store : block.stores) store.to.row += begin, store.to.rows = end - begin;
  return task;
}

Plan in_reverse(Plan plan) {
  for (int rank = 0; rank < plan.problem.ranks; ++rank) {
    auto& tasks = tasks_of(plan, rank);
    const auto first = std::find_if(tasks.begin(), tasks.end(), is_block);
    const auto last = std::find_if_not(first, tasks.end(), is_block);
    std::reverse(first, last);
  }
  return plan;
}

// Slices of unlike lengths, the shorter ones first or last.
Plan in_odd_slices(const Plan& plan) {
  int turn = 0;
  return with_blocks(plan, [&](int, const Task& task) -> std::vector<Task> {
    const std::int64_t rows = std::get<Block>(task.work).args[1], cut = ++turn % 3 == 0 ? rows - 1 : 1;
    if (rows < 2) return {task};
    return {rows_of(task, 0, cut), rows_of(task, cut, rows)};
  });
}

Plan table_by_table(const Plan& plan) {
  return with_blocks(plan, [&](int rank, const Task& task) {
    const problem::OwnShards own(plan.problem.tables, rank);
    std::vector<Task> parts;
    for (std::size_t i = 0; i < own.count(); ++i) {
      Task part = task;
      Block& block = block_of(part);
      Region to = block.stores.front().to;
      to.col = own[i].first_col, to.cols = own[i].dim;
      block.args[2] = static_cast<std::int64_t>(i), block.args[3] = 1;
      block.stores = {{to, 0, 0}};
      parts.push_back(std::move(part));
    }
    return parts;
  });
}

Plan in_shares(const Plan& plan) {
  return with_blocks(plan, [&](int, const Task& task) {
    std::vector<Task> parts(3, task);
    for (int share = 0; share < 3; ++share) block_of(parts[static_cast<std::size_t>(share)]).share = share;
    for (Task& part : parts) block_of(part).shares = 3;
    return parts;
  });
}

// Each store in pieces, four columns and the rest, of the first rows and of the others.
Plan in_pieces(const Plan& plan) {
  return with_blocks(plan, [&](int, Task task) {
    Block& block = block_of(task);
    std::vector<Store> pieces;
    for (const Store& store : block.stores) {
      const std::int64_t rows = store.to.rows, cols = store.to.cols, top = (rows + 1) / 2;
      for (const auto& [row, count] : {std::pair{std::int64_t{0}, top}, std::pair{top, rows - top}})
        for (const auto& [col, width] :
             {std::pair{std::int64_t{0}, std::int64_t{4}}, std::pair{std::int64_t{4}, cols - 4}}) {
          if (count == 0 || width == 0) continue;
          Store piece = store;
          piece.row += row, piece.to.row += row, piece.to.rows = count;
          piece.col += col, piece.to.col += col, piece.to.cols = width;
          pieces.push_back(piece);
        }
    }
    block.stores = std::move(pieces);
    return std::vector<Task>{task};
  });
}

bool goes_to(const Task& task, int rank) {
  return is_block(task) && std::get<Block>(task.work).stores.front().to.rank == rank;
}

// A rank's own rows first: before it lets its peers in, too.
Plan own_first(Plan plan) {
  for (int rank = 0; rank < plan.problem.ranks; ++rank) {
    auto& tasks = tasks_of(plan, rank);
    std::stable_partition(tasks.begin(), tasks.end(), [&](const Task& task) { return goes_to(task, rank); });
  }
  return plan;
}

Plan own_in_a_queue(Plan plan) {
  for (int rank = 0; rank < plan.problem.ranks; ++rank) {
    auto& tasks = tasks_of(plan, rank);
    Queue own;
    own.workers = 1;
    std::copy_if(tasks.begin(), tasks.end(), std::back_inserter(own.tasks),
                 [&](const Task& task) { return goes_to(task, rank); });
    std::erase_if(tasks, [&](const Task& task) { return goes_to(task, rank); });
    plan.ranks[static_cast<std::size_t>(rank)].queues.push_back(std::move(own));
  }
  return plan;
}

// Every block waits and posts twice, so that no launch of several can do it for them.
Plan waiting_twice(Plan plan) {
  const int again = plan.ranks.front().signals;
  for (int rank = 0; rank < plan.problem.ranks; ++rank) {
    ++plan.ranks[static_cast<std::size_t>(rank)].signals;
    auto& tasks = tasks_of(plan, rank);
    for (Task& task : tasks)
      if (is_block(task)) {
        task.waits.push_back({again});
        if (!task.posts.empty()) task.posts.push_back(task.posts.front());
      }
    Task begin{Transfer{}, {}, {{rank, again}}};
    tasks.insert(tasks.begin(), begin);
  }
  return settled(std::move(plan));
}

// Sums go to a workspace beside the output, of `copies` copies, and from there, all together, into it: by the rank's
// workers or its copy engine; rounded only there where `type` is fp32.
Plan through_a_workspace(Plan plan, int copies, Engine engine, Type type) {
  const int staged = static_cast<int>(plan.buffers.size());
  const Extent shape{plan.buffers.front().rows, plan.buffers.front().cols};
  const bool sums = type != plan.buffers.front().type;
  plan.buffers.push_back({"staged", BufferRole::workspace, Layout::row_major, type, shape.rows, shape.cols, copies});
  const int there = plan.ranks.front().signals;
  for (int rank = 0; rank < plan.problem.ranks; ++rank) {
    RankPlan& own = plan.ranks[static_cast<std::size_t>(rank)];
    ++own.signals;
    auto& tasks = tasks_of(plan, rank);
    std::vector<Wait> waits{{there}};
    for (Task& task : tasks) {
      if (!is_block(task)) continue;
      for (Store& store : block_of(task).stores) store.to.buffer = staged;
      if (goes_to(task, rank)) task.posts.push_back({rank, there});
    }
    if (const auto last = tasks.empty() ? Task{} : tasks.back();
        !tasks.empty() && !is_block(last) && last.posts.empty()) {
      waits.insert(waits.end(), last.waits.begin(), last.waits.end());
      tasks.pop_back();
    }
    const Region from{rank, staged, 0, 0, shape.rows, shape.cols}, to{rank, 0, 0, 0, shape.rows, shape.cols};
    Task copy{Transfer{from, to}, waits, {}};
    if (sums) copy.work = Reduction{{from}, {to}};
    if (engine == Engine::compute) {
      tasks.push_back(std::move(copy));
      continue;
    }
    Queue queue;
    queue.engine = engine;
    queue.tasks.push_back(std::move(copy));
    own.queues.push_back(std::move(queue));
  }
  return settled(std::move(plan));
}

}  // namespace

std::vector<EditedPlan> edited_bags(const Plan& made) {
  const Type type = made.buffers.front().type;
  return {{"in reverse", in_reverse(made)},
          {"in odd slices", in_odd_slices(made)},
          {"table by table", table_by_table(made)},
          {"in shares", in_shares(made)},
          {"in pieces", in_pieces(made)},
          {"own rows first", own_first(made)},
          {"own rows in a queue", own_in_a_queue(made)},
          {"waiting twice", waiting_twice(made)},
          {"through a workspace", through_a_workspace(made, 1, Engine::compute, type)},
          {"through two workspaces", through_a_workspace(made, 2, Engine::compute, type)},
          {"rounded at last", through_a_workspace(made, 2, Engine::compute, Type::fp32)},
          {"by a copy engine", through_a_workspace(made, 2, Engine::copy, type)},
          {"in odd slices of tables, in reverse", in_reverse(table_by_table(in_odd_slices(made)))}};
}

}  // namespace imbrex::test
