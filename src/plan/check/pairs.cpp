#include "plan/check/pairs.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "base/narrow.hpp"

namespace imbrex::plan {
namespace {

using base::index;

// What others' posts may hang on, if it stands before them in their queue. A transfer or a reduction that waits for
// nothing ends.
bool may_hang(const Task& task) {
  return !task.waits.empty() || std::holds_alternative<Tile>(task.work) ||
         std::holds_alternative<Collective>(task.work);
}

// Calls f(place, task) for every task that posts, after itself or one before it in its queue, something that may hang.
template <typename F>
void for_each_late_poster(const Plan& plan, F&& f) {
  for (int rank = 0; rank < std::ssize(plan.ranks); ++rank)
    for (int queue = 0; queue < std::ssize(plan.ranks[index(rank)].queues); ++queue) {
      const auto& tasks = plan.ranks[index(rank)].queues[index(queue)].tasks;
      for (auto task = std::find_if(tasks.begin(), tasks.end(), may_hang); task != tasks.end(); ++task)
        f(TaskPlace{rank, queue, static_cast<std::size_t>(task - tasks.begin())}, *task);
    }
}

class PairFaults {
 public:
  explicit PairFaults(const Plan& plan) : plan_(plan) {
    for (const RankPlan& rank : plan.ranks) free_.emplace_back(index(rank.signals), true);
    for_each_late_poster(plan, [&](const TaskPlace&, const Task& task) {
      for (const Post& post : task.posts) free_[index(post.rank)][index(post.signal)] = false;
    });
  }

  std::optional<Finding> of(const TaskPlace& place, const std::vector<Task>& tasks) const {
    const Task& task = tasks[place.index];
    const std::size_t first = place.index - index(task.mate);
    if (std::holds_alternative<Tile>(task.work))
      for (const Wait& wait : task.waits)
        if (wait.point == WaitPoint::load && !free_[index(place.rank)][index(wait.signal)])
          return finding(place, task,
                         fmt::format("loads beside its pair's first tile, task {}, but waits before that for signal "
                                     "{}, to which {} posts after a wait, a tile or a collective",
                                     first, wait.signal, late_poster(place.rank, wait.signal)));
    if (task.waits.empty()) return std::nullopt;
    for (std::size_t i = first + 1; i < place.index; ++i) {
      if (i - index(tasks[i].mate) > first)
        return finding(place, task,
                       fmt::format("waits, and goes beside task {}, ahead of {}: only a mate that waits for nothing "
                                   "goes ahead of others",
                                   first, task_name(plan_, place.rank, place.queue, i)));
    }
    return std::nullopt;
  }

 private:
  Finding finding(const TaskPlace& place, const Task& task, const std::string& text) const {
    return {Fault::deadlock, place.rank, place.queue, static_cast<std::int64_t>(place.index),
            task_name(place.rank, place.queue, place.index, task) + ": " + text};
  }

  std::string late_poster(int rank, int signal) const {
    std::string name;
    for_each_late_poster(plan_, [&](const TaskPlace& place, const Task& task) {
      if (name.empty() && std::find(task.posts.begin(), task.posts.end(), Post{rank, signal}) != task.posts.end())
        name = task_name(place.rank, place.queue, place.index, task);
    });
    return name;
  }

  const Plan& plan_;
  std::vector<std::vector<bool>> free_;  // by rank and signal: only tasks post to it that always end
};

}  // namespace

std::string PairRules::add(const Plan& frame, const Queue& queue, const Task& task) {
  if (task.mate == 0 && (queue.engine != Engine::compute || queue.cluster == ClusterMode::single)) return "";
  if (queue.engine != Engine::compute)
    return fmt::format("mate {}: this is a {} queue, and pairs are for compute queues", task.mate,
                       name_of(queue.engine));
  if (queue.cluster == ClusterMode::single)
    return fmt::format("mate {}: workers of a queue with cluster single take one task at a time", task.mate);
  if (window_.empty()) window_.resize(pair_window);
  const std::size_t number = count_++;
  Entry& own = window_[number % pair_window];
  own = {side_of(frame, task), task.mate != 0};
  if (task.mate == 0) return "";
  if (task.mate < 0 || task.mate > most_mate || index(task.mate) > number)
    return fmt::format("mate {}: its pair's first task must be from 1 to {} tasks before it in its queue", task.mate,
                       most_mate);
  const std::size_t number_of_first = number - index(task.mate);
  Entry& first = window_[number_of_first % pair_window];
  if (own.side.kind == PairSide::Kind::tile && queue.cluster == ClusterMode::share_k)
    return fmt::format("mate {}: workers of a queue with cluster share_k share each tile, so tiles have no mates",
                       task.mate);
  if (first.paired)
    return fmt::format("mate {}: task {} is in another pair, and a task is in one at most", task.mate, number_of_first);
  if (!alike(first.side, own.side))
    return fmt::format("mate {}: it is no pair with task {}: {}", task.mate, number_of_first,
                       difference(first.side, own.side));
  first.paired = true;
  return "";
}

std::optional<Finding> find_pair_fault(const Plan& plan) {
  std::optional<PairFaults> faults;
  std::optional<Finding> found;
  for_each_task(plan, [&](const TaskPlace& place, const Task& task) {
    if (task.mate == 0 || found) return;
    if (!faults) faults.emplace(plan);
    found = faults->of(place, plan.ranks[index(place.rank)].queues[index(place.queue)].tasks);
  });
  return found;
}

}  // namespace imbrex::plan
