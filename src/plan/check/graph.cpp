#include "plan/check/graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_set>

#include "base/narrow.hpp"

namespace imbrex::plan {
namespace {

using base::index;

bool in_order(Engine engine) { return engine != Engine::compute; }

bool before(const Wait& wait, const Moment& moment) {
  return moment.all || (wait.point == WaitPoint::load && wait.k_begin <= moment.k_limit);
}

}  // namespace

Graph::Graph(const Plan& plan) : plan_(plan) {
  std::uint32_t signals = 0;
  for (const RankPlan& rank : plan.ranks) {
    signal_base_.push_back(signals);
    signals += base::narrow<std::uint32_t>(rank.signals, "signals");
  }
  signals_.resize(signals);
  nodes_.reserve(count_tasks(plan));
  std::map<int, std::int32_t> groups;
  std::vector<std::pair<int, int>> poster(signals, {-1, -1});  // rank and queue of a signal's posts so far
  for (int rank = 0; rank < plan.problem.ranks; ++rank) {
    first_of_queue_.emplace_back();
    const auto& queues = plan.ranks[index(rank)].queues;
    for (int q = 0; q < std::ssize(queues); ++q) {
      first_of_queue_.back().push_back(static_cast<TaskId>(nodes_.size()));
      const bool ordered_queue = in_order(queues[index(q)].engine);
      for (const Task& task : queues[index(q)].tasks) {
        const auto id = static_cast<TaskId>(nodes_.size());
        TaskNode node{&task, rank, q, id - first_of_queue_.back().back()};
        node.first_wait = base::narrow<std::uint32_t>(wait_nodes_of_.size(), "waits");
        node.first_post = base::narrow<std::uint32_t>(ordinals_.size(), "posts");
        if (ordered_queue && node.index > 0) {
          node.previous = id - 1;
          nodes_.back().next = id;
        }
        if (const auto* collective = std::get_if<Collective>(&task.work)) {
          const auto [place, fresh] =
              groups.insert({collective->group, base::narrow<std::int32_t>(collectives_.size(), "collectives")});
          if (fresh) collectives_.emplace_back();
          node.collective = place->second;
          collectives_[static_cast<std::size_t>(place->second)].push_back(id);
        }
        for (const Wait& wait : task.waits)
          wait_nodes_of_.push_back(wait_node(signal_id(rank, wait.signal), wait.count));
        for (const Post& post : task.posts) {
          const std::uint32_t s = signal_id(post.rank, post.signal);
          Signal& signal = signals_[s];
          const std::pair<int, int> here{rank, q};
          if (poster[s].first < 0) poster[s] = here, signal.in_order = ordered_queue;
          if (poster[s] != here) signal.in_order = false;
          if (poster[s].first != rank) signal.one_rank = false;
          ordinals_.push_back(base::narrow<std::uint32_t>(signal.total, "posts"));
          if (signal.makers.empty() || signal.makers.back().task != id) signal.makers.push_back({id});
          ++signal.makers.back().made;
          signal.posts.push_back({id, base::narrow<std::uint32_t>(signal.total++, "posts")});
        }
        nodes_.push_back(node);
      }
    }
  }
  for (Signal& signal : signals_)
    std::sort(signal.makers.begin(), signal.makers.end(),
              [](const Maker& x, const Maker& y) { return x.made > y.made; });
  visited_.resize(nodes_.size());
  link_exchanges();
}

void Graph::link_exchanges() {
  for (const std::vector<TaskId>& parts : collectives_) {
    std::map<int, TaskId> part_of;
    for (const TaskId part : parts) part_of[nodes_[part].rank] = part;
    for (const TaskId part : parts) {
      const auto& work = std::get<Collective>(nodes_[part].task->work);
      if (work.kind != CollectiveKind::send_receive) break;
      nodes_[part].source = part_of.at(work.receive_from);
      nodes_[part].target = part_of.at(work.send_to);
    }
  }
}

template <typename F>
void Graph::for_each_before(TaskId task, F&& f) const {
  const TaskNode& node = nodes_[task];
  if (node.source == no_task && node.collective >= 0) {
    for (const TaskId part : collectives_[static_cast<std::size_t>(node.collective)]) f(part);
    return;
  }
  f(task);
  if (node.source != no_task) f(node.source);
}

template <typename F>
void Graph::for_each_behind(TaskId task, F&& f) const {
  const TaskNode& node = nodes_[task];
  if (node.target == no_task) return for_each_before(task, f);
  f(task);
  f(node.target);
}

std::uint32_t Graph::wait_node(std::uint32_t signal, std::uint32_t count) {
  const auto node = base::narrow<std::uint32_t>(wait_nodes_.size(), "waits");
  const auto [place, fresh] = wait_node_of_.insert({std::uint64_t{signal} << 32 | count, node});
  if (!fresh) return place->second;
  wait_nodes_.push_back({signal, count});
  signals_[signal].wait_nodes.push_back(node);
  return node;
}

std::uint64_t Graph::posts_made(TaskId task, std::uint32_t signal) const {
  std::uint64_t made = 0;
  for (const Post& post : nodes_[task].task->posts) made += signal_id(post.rank, post.signal) == signal;
  return made;
}

bool Graph::sure_of(TaskId task, const WaitNode& node) const {
  const TaskNode& n = nodes_[task];
  const Signal& signal = signals_[node.signal];
  for (std::size_t p = 0; p < n.task->posts.size(); ++p) {
    const Post& post = n.task->posts[p];
    if (signal_id(post.rank, post.signal) == node.signal)
      return signal.in_order ? ordinals_[n.first_post + p] < node.count
                             : signal.total - posts_made(task, node.signal) < node.count;
  }
  return false;
}

Finding Graph::finding(Fault fault, TaskId task, const std::string& text) const {
  const TaskNode& node = nodes_[task];
  return {fault, node.rank, node.queue, node.index, task_name(plan_, node.rank, node.queue, node.index) + ": " + text};
}

// ---------------------------------------------------------------------------------------------------- deadlock

std::optional<Finding> Graph::find_deadlock() {
  std::vector<std::uint64_t> seen(signals_.size());
  std::vector<std::vector<std::size_t>> heads(plan_.ranks.size());
  std::vector<std::vector<std::pair<int, int>>> parked(
      signals_.size());  // queues whose first task waits for the signal
  std::vector<std::pair<int, int>> runnable;
  std::vector<std::size_t> joined(collectives_.size());
  for (int rank = 0; rank < plan_.problem.ranks; ++rank) {
    heads[index(rank)].resize(plan_.ranks[index(rank)].queues.size());
    for (int queue = 0; queue < std::ssize(heads[index(rank)]); ++queue) runnable.push_back({rank, queue});
  }
  const auto complete = [&](TaskId id, std::uint32_t position) {
    nodes_[id].position = position;
    order_.push_back(id);
    for (const Post& post : nodes_[id].task->posts) {
      const std::uint32_t s = signal_id(post.rank, post.signal);
      ++seen[s];
      runnable.insert(runnable.end(), parked[s].begin(), parked[s].end());
      parked[s].clear();
    }
  };
  while (!runnable.empty()) {
    const auto [rank, queue] = runnable.back();
    runnable.pop_back();
    std::size_t& head = heads[index(rank)][index(queue)];
    const auto& tasks = plan_.ranks[index(rank)].queues[index(queue)].tasks;
    while (head < tasks.size()) {
      const TaskId id = first_of_queue_[index(rank)][index(queue)] + static_cast<TaskId>(head);
      const TaskNode& node = nodes_[id];
      const Wait* blocking = nullptr;
      for (const Wait& wait : node.task->waits)
        if (seen[signal_id(rank, wait.signal)] < wait.count) blocking = &wait;
      if (blocking != nullptr) {
        parked[signal_id(rank, blocking->signal)].push_back({rank, queue});
        break;
      }
      const auto position = base::narrow<std::uint32_t>(order_.size(), "tasks");
      if (node.collective < 0) {
        complete(id, position);
        ++head;
        continue;
      }
      const auto& parts = collectives_[static_cast<std::size_t>(node.collective)];
      if (++joined[static_cast<std::size_t>(node.collective)] < parts.size()) break;
      for (TaskId part : parts) {
        complete(part, position);
        ++heads[index(nodes_[part].rank)][index(nodes_[part].queue)];
        if (part != id) runnable.push_back({nodes_[part].rank, nodes_[part].queue});
      }
    }
  }
  if (order_.size() < nodes_.size()) return stuck(seen, heads);
  compute_entered();
  compute_holds();
  return std::nullopt;
}

// Names the wait that explains most: one that the whole plan cannot satisfy before one that hangs on others.
Finding Graph::stuck(const std::vector<std::uint64_t>& seen, const std::vector<std::vector<std::size_t>>& heads) const {
  std::optional<Finding> found;
  for (int rank = 0; rank < plan_.problem.ranks; ++rank)
    for (std::size_t queue = 0; queue < heads[index(rank)].size(); ++queue) {
      if (heads[index(rank)][queue] >= plan_.ranks[index(rank)].queues[queue].tasks.size()) continue;
      const TaskId id = first_of_queue_[index(rank)][queue] + static_cast<TaskId>(heads[index(rank)][queue]);
      bool waits = false;
      for (const Wait& wait : nodes_[id].task->waits) {
        const std::uint32_t s = signal_id(rank, wait.signal);
        if (seen[s] >= wait.count) continue;
        waits = true;
        if (signals_[s].total < wait.count)
          return finding(Fault::deadlock, id,
                         fmt::format("waits for {} posts to signal {}, but an epoch has only {}", wait.count,
                                     wait.signal, signals_[s].total));
        if (!found)
          found = finding(Fault::deadlock, id,
                          fmt::format("waits for {} posts to signal {} and never sees more than {}: the tasks that "
                                      "post the rest wait for this one, directly or after others in their queues",
                                      wait.count, wait.signal, seen[s]));
      }
      if (!waits && !found) found = finding(Fault::deadlock, id, "some rank never reaches this collective");
    }
  return *found;
}

// ------------------------------------------------------------------------------- who has entered, who may not leave

template <typename F>
void Graph::for_each_wait(TaskId task, F&& f) const {
  const TaskNode& node = nodes_[task];
  for (std::size_t w = 0; w < node.task->waits.size(); ++w) f(node.task->waits[w], wait_nodes_of_[node.first_wait + w]);
}

// The tasks of which the wait is sure to have seen a post, whichever came first.
template <typename F>
void Graph::for_each_sure(const WaitNode& node, F&& f) const {
  const Signal& signal = signals_[node.signal];
  if (signal.in_order) {
    for (std::uint32_t p = 0; p < node.count && p < signal.posts.size(); ++p) f(signal.posts[p].task);
    return;
  }
  for (const Maker& maker : signal.makers) {
    if (signal.total - maker.made >= node.count) return;
    f(maker.task);
  }
}

RankMask Graph::wait_entered(WaitNode& node) {
  if (node.entered_known) return node.entered;
  node.entered_known = true;
  Signal& signal = signals_[node.signal];
  if (signal.in_order) {
    while (signal.entered.size() < node.count) {
      const RankMask before = signal.entered.empty() ? 0 : signal.entered.back();
      signal.entered.push_back(before | entered_end_[signal.posts[signal.entered.size()].task]);
    }
    node.entered = signal.entered[node.count - 1];
  } else {
    for_each_sure(node, [&](TaskId task) { node.entered |= entered_end_[task]; });
  }
  return node.entered;
}

// The ranks that a post of the task holds; called for an in-order queue's last posts first.
RankMask Graph::held_by(TaskId task, std::size_t post) {
  const TaskNode& node = nodes_[task];
  Signal& signal = signals_[signal_id(node.task->posts[post].rank, node.task->posts[post].signal)];
  const std::uint32_t ordinal = ordinals_[node.first_post + post];
  if (signal.in_order) {
    for (; signal.held < signal.wait_nodes.size(); ++signal.held) {
      const WaitNode& wait = wait_nodes_[signal.wait_nodes[signal.held]];
      if (wait.count <= ordinal) break;
      signal.holds |= wait.holds;
    }
    return signal.holds;
  }
  // A task's posts to a signal stand together, and the first of them speaks for all.
  RankMask mask = 0;
  if (ordinal > 0 && signal.posts[ordinal - 1].task == task) return mask;
  std::uint64_t made = 1;
  while (ordinal + made < signal.posts.size() && signal.posts[ordinal + made].task == task) ++made;
  for (std::uint32_t w : signal.wait_nodes) {
    if (signal.total - made >= wait_nodes_[w].count) break;
    mask |= wait_nodes_[w].holds;
  }
  return mask;
}

void Graph::compute_entered() {
  entered_load_.resize(nodes_.size());
  entered_end_.resize(nodes_.size());
  entered_leave_.resize(plan_.ranks.size());
  for (std::size_t i = 0; i < order_.size();) {
    // The parts of a collective follow each other, and each knows what all know; or, in a send_receive, what it and its
    // source know.
    std::size_t end = i + 1;
    const std::int32_t collective = nodes_[order_[i]].collective;
    if (collective >= 0) end = i + collectives_[static_cast<std::size_t>(collective)].size();
    RankMask shared = 0;
    for (std::size_t j = i; j < end; ++j) {
      const TaskId id = order_[j];
      const TaskNode& node = nodes_[id];
      RankMask load = bit(node.rank);
      if (node.previous != no_task) load |= entered_end_[node.previous];
      RankMask all = load;
      for_each_wait(id, [&](const Wait& wait, std::uint32_t w) {
        const RankMask mask = wait_entered(wait_nodes_[w]);
        all |= mask;
        if (wait.point == WaitPoint::load && wait.k_begin == 0) load |= mask;
      });
      entered_load_[id] = load;
      entered_end_[id] = all;
      shared |= all;
    }
    std::vector<RankMask> received;
    for (std::size_t j = i; j < end; ++j)
      if (const TaskId source = nodes_[order_[j]].source; source != no_task) received.push_back(entered_end_[source]);
    for (std::size_t j = i; j < end; ++j) {
      const TaskId id = order_[j];
      if (!received.empty())
        entered_end_[id] |= received[j - i];
      else if (collective >= 0)
        entered_end_[id] = shared;
      entered_leave_[index(nodes_[id].rank)] |= entered_end_[id];
    }
    i = end;
  }
  for (std::size_t rank = 0; rank < entered_leave_.size(); ++rank)
    entered_leave_[rank] |= bit(base::narrow<int>(rank, "ranks"));
}

void Graph::compute_holds() {
  for (Signal& signal : signals_)
    std::sort(signal.wait_nodes.begin(), signal.wait_nodes.end(),
              [&](std::uint32_t x, std::uint32_t y) { return wait_nodes_[x].count > wait_nodes_[y].count; });
  holds_.resize(nodes_.size());
  for (std::size_t i = order_.size(); i > 0;) {
    const std::int32_t collective = nodes_[order_[i - 1]].collective;
    const std::size_t begin = collective >= 0 ? i - collectives_[static_cast<std::size_t>(collective)].size() : i - 1;
    RankMask shared = 0;
    for (std::size_t j = begin; j < i; ++j) {
      const TaskId id = order_[j];
      const TaskNode& node = nodes_[id];
      RankMask mask = bit(node.rank);
      if (node.next != no_task) for_each_behind(node.next, [&](TaskId part) { mask |= holds_[part]; });
      for (std::size_t p = node.task->posts.size(); p > 0; --p) mask |= held_by(id, p - 1);
      holds_[id] = mask;
      shared |= mask;
    }
    for (std::size_t j = begin; j < i; ++j)
      for_each_wait(order_[j], [&](const Wait&, std::uint32_t w) {
        const TaskNode& node = nodes_[order_[j]];
        wait_nodes_[w].holds |= node.target != no_task ? holds_[order_[j]] | holds_[node.target]
                                : collective >= 0      ? shared
                                                       : holds_[order_[j]];
      });
    i = begin;
  }
}

// ----------------------------------------------------------------------------------------------- within one epoch

bool Graph::ordered(TaskId first, TaskId second, const Moment& moment) {
  const TaskNode &f = nodes_[first], &s = nodes_[second];
  if (f.position >= s.position) return false;
  // One in-order queue, or a post that the access directly waits for: nearly always one of these.
  if (s.previous != no_task && f.rank == s.rank && f.queue == s.queue) return true;
  bool direct = false;
  for_each_wait(second, [&](const Wait& wait, std::uint32_t w) {
    direct = direct || (before(wait, moment) && sure_of(first, wait_nodes_[w]));
  });
  return direct || search(first, second, moment);
}

bool Graph::search(TaskId first, TaskId second, const Moment& moment) {
  ++stamp_;
  stack_.clear();
  pending_waits_.clear();
  bool found = false;
  const std::uint32_t bound = nodes_[first].position;
  const auto reach = [&](TaskId id) {
    if (id == first) found = true;
    if (visited_[id] == stamp_ || nodes_[id].position <= bound) return;
    visited_[id] = stamp_;
    stack_.push_back(id);
  };
  const auto expand = [&](TaskId id, const Moment& m) {
    if (nodes_[id].previous != no_task) reach(nodes_[id].previous);
    for_each_wait(id, [&](const Wait& wait, std::uint32_t w) {
      WaitNode& node = wait_nodes_[w];
      if (found || !before(wait, m) || node.visited == stamp_) return;
      node.visited = stamp_;
      found = sure_of(first, node);
      pending_waits_.push_back(w);
    });
  };
  const auto expand_all = [&](TaskId id, const Moment& m) {
    for_each_before(id, [&](TaskId part) { expand(part, m); });
  };
  // A collective's result is ordered after all ranks' waits (a send_receive's after two ranks'); the read of one rank's
  // source after its own only, which the caller asks for with moment.all = false.
  if (moment.all)
    expand_all(second, moment);
  else
    expand(second, moment);
  // Tasks that post to a signal may be very many, so they come once nothing else is left.
  while (!found && !(stack_.empty() && pending_waits_.empty())) {
    if (!stack_.empty()) {
      const TaskId id = stack_.back();
      stack_.pop_back();
      expand_all(id, Moment{});
      continue;
    }
    const WaitNode& node = wait_nodes_[pending_waits_.back()];
    pending_waits_.pop_back();
    for_each_sure(node, reach);
  }
  return found;
}

// --------------------------------------------------------------------------------------------------- across epochs

// Ranks known to have entered epoch e + 1 once `later` acts in epoch e + copies. With one copy these are the ranks that
// `later` knows to have entered its own epoch; with two, each of those has left epoch e + 1, and so knows more.
RankMask Graph::later_epoch_entered(TaskId later, int copies) const {
  const RankMask now = entered_end_[later];
  if (copies == 1) return now;
  RankMask mask = now;
  for (int rank = 0; rank < plan_.problem.ranks; ++rank)
    if (now & bit(rank)) mask |= entered_leave_[index(rank)];
  return mask;
}

bool Graph::ordered_across(TaskId earlier, TaskId later, int copies) const {
  return (holds_[earlier] & later_epoch_entered(later, copies)) != 0;
}

std::optional<Finding> Graph::find_signal_reuse() {
  std::vector<std::vector<TaskId>> waiters(signals_.size());
  for (TaskId id = 0; id < nodes_.size(); ++id)
    for_each_wait(id, [&](const Wait&, std::uint32_t w) {
      const std::uint32_t s = wait_nodes_[w].signal;
      // One rank's posts of an epoch all come before its posts of the next: the count alone tells them apart.
      if (!signals_[s].one_rank) waiters[s].push_back(id);
    });
  for (std::size_t s = 0; s < signals_.size(); ++s) {
    if (waiters[s].empty()) continue;
    std::unordered_set<RankMask> entered;
    for (const Posting& post : signals_[s].posts) entered.insert(later_epoch_entered(post.task, plan_.signal_copies));
    std::unordered_set<RankMask> seen;
    for (TaskId waiter : waiters[s]) {
      if (!seen.insert(holds_[waiter]).second) continue;
      for (RankMask mask : entered)
        if ((holds_[waiter] & mask) == 0)
          return finding(
              Fault::reuse, waiter,
              fmt::format("posts of epoch e+{} to signal {} may arrive while this wait of epoch e is pending",
                          plan_.signal_copies, s - signal_base_[index(nodes_[waiter].rank)]));
    }
  }
  return std::nullopt;
}

// Plans of a world take turns in one part of memory, of which two halves suffice where this holds: see
// docs/dev/protocols.md, "Plans that take turns".
std::optional<Finding> Graph::find_early_leave() const {
  for (std::size_t rank = 0; rank < entered_leave_.size(); ++rank)
    for (int other = 0; other < plan_.problem.ranks; ++other)
      if ((entered_leave_[rank] & bit(other)) == 0)
        return Finding{
            Fault::reuse, base::narrow<int>(rank, "ranks"), -1, -1,
            fmt::format("rank {} may end the epoch before rank {} has begun it: the plan that comes next may "
                        "work in the same memory",
                        rank, other)};
  return std::nullopt;
}

}  // namespace imbrex::plan
