// What happens before what, in every schedule of a plan.
//
// A compute queue starts its tasks in order, but with several workers their ends are not ordered; copy and library
// queues also end in order. Between tasks, only posts that a wait cannot do without give order: with P posts to a
// signal in an epoch, a wait for T of them is sure to have seen those of a task that makes m of them if P - m < T; if
// one in-order queue makes all posts, a wait for T has seen the first T.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/narrow.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::plan {

using TaskId = std::uint32_t;
using RankMask = std::uint64_t;
inline constexpr TaskId no_task = ~TaskId{0};

inline RankMask bit(int rank) { return RankMask{1} << rank; }

struct TaskNode {
  const Task* task = nullptr;
  int rank = 0, queue = 0;
  std::uint32_t index = 0;       // in its queue
  TaskId previous = no_task;     // in an in-order queue: the task that ends before this one starts
  TaskId next = no_task;         // in an in-order queue: the task after it
  std::uint32_t first_wait = 0;  // into wait_nodes_of
  std::uint32_t first_post = 0;  // into the ordinals of posts
  std::uint32_t position = 0;  // in an order that one worker per queue can run; the parts of a collective share theirs
  std::int32_t collective = -1;               // index of the collective that it is part of
  TaskId source = no_task, target = no_task;  // a part of a send_receive: the parts that it receives from and sends to
};

/// The part of a task that an access belongs to: which of the task's waits come before it.
struct Moment {
  bool all = true;           // after every wait (stores, slots); else after load waits up to k_limit
  std::int64_t k_limit = 0;  // load waits with k_begin <= k_limit come before
};

class Graph {
 public:
  /// The plan must have passed check_format and outlive the graph.
  explicit Graph(const Plan& plan);

  /// Runs the plan with one worker per queue; if that worker gets through, any number does (a blocked schedule with
  /// more workers would hold back the first unfinished task of this one, whose waits are then met). The fault, if
  /// stuck.
  std::optional<Finding> find_deadlock();

  // The rest is valid after find_deadlock found none.

  const std::vector<TaskNode>& nodes() const { return nodes_; }
  const std::vector<TaskId>& order() const { return order_; }
  const std::vector<std::vector<TaskId>>& collectives() const { return collectives_; }

  /// Whether the end of `first` comes before `moment` of `second` in every schedule.
  bool ordered(TaskId first, TaskId second, const Moment& moment);

  /// Ranks known to have entered the epoch at the task's load point; when it ends.
  RankMask entered_at_load(TaskId task) const { return entered_load_[task]; }
  RankMask entered_at_end(TaskId task) const { return entered_end_[task]; }
  /// Ranks that cannot leave the epoch before the task has ended.
  RankMask holds(TaskId task) const { return holds_[task]; }

  /// A wait whose counter may be met by a later epoch's posts.
  std::optional<Finding> find_signal_reuse();

  /// A rank that may end the epoch before some other rank has begun it.
  std::optional<Finding> find_early_leave() const;

  /// Whether what `earlier` does in epoch e comes before what `later` does in epoch e + copies.
  bool ordered_across(TaskId earlier, TaskId later, int copies) const;

  Finding finding(Fault fault, TaskId task, const std::string& text) const;

 private:
  struct Posting {
    TaskId task = 0;
    std::uint32_t ordinal = 0;
  };
  // A task that posts to a signal, and how often.
  struct Maker {
    TaskId task = 0;
    std::uint64_t made = 0;
  };
  struct Signal {
    std::vector<Posting> posts;
    std::vector<Maker> makers;              // makers with the most posts first
    std::vector<std::uint32_t> wait_nodes;  // for holds: those of the largest counts first
    std::uint64_t total = 0;
    bool in_order = false;  // all posts come from one in-order queue
    bool one_rank = true;   // all posts come from one rank
    // In order, what is sure grows post by post, and is kept, as there may be as many counts as posts.
    std::vector<RankMask> entered;  // known from the first posts, up to each
    std::size_t held = 0;           // wait nodes that are in `holds`
    RankMask holds = 0;
  };
  // All waits for the same count of the same signal.
  struct WaitNode {
    std::uint32_t signal = 0, count = 0;
    bool entered_known = false;
    RankMask entered = 0, holds = 0;
    std::uint32_t visited = 0;
  };

  std::uint32_t signal_id(int rank, int signal) const {
    return signal_base_[static_cast<std::size_t>(rank)] + base::narrow<std::uint32_t>(signal, "signals");
  }
  std::uint32_t wait_node(std::uint32_t signal, std::uint32_t count);
  bool sure_of(TaskId task, const WaitNode& node) const;
  std::uint64_t posts_made(TaskId task, std::uint32_t signal) const;
  Finding stuck(const std::vector<std::uint64_t>& seen, const std::vector<std::vector<std::size_t>>& heads) const;
  void compute_entered();
  void compute_holds();
  RankMask wait_entered(WaitNode& node);
  template <typename F>
  void for_each_sure(const WaitNode& node, F&& f) const;
  RankMask held_by(TaskId task, std::size_t post);
  RankMask later_epoch_entered(TaskId later, int copies) const;
  bool search(TaskId first, TaskId second, const Moment& moment);
  template <typename F>
  void for_each_wait(TaskId task, F&& f) const;
  void link_exchanges();
  // The parts of its collective, itself among them, that all have begun when the task ends; that end only after it has
  // begun. A task that is part of none is alone.
  template <typename F>
  void for_each_before(TaskId task, F&& f) const;
  template <typename F>
  void for_each_behind(TaskId task, F&& f) const;

  const Plan& plan_;
  std::vector<TaskNode> nodes_;
  std::vector<std::vector<TaskId>> first_of_queue_;  // by rank and queue
  std::vector<std::uint32_t> signal_base_;
  std::vector<Signal> signals_;
  std::vector<WaitNode> wait_nodes_;
  std::unordered_map<std::uint64_t, std::uint32_t> wait_node_of_;  // by signal and count
  std::vector<std::uint32_t> wait_nodes_of_, ordinals_;
  std::vector<std::vector<TaskId>> collectives_;
  std::vector<TaskId> order_;
  std::vector<RankMask> entered_load_, entered_end_, entered_leave_, holds_;
  std::vector<std::uint32_t> visited_;
  std::vector<TaskId> stack_;
  std::vector<std::uint32_t> pending_waits_;
  std::uint32_t stamp_ = 0;
};

}  // namespace imbrex::plan
