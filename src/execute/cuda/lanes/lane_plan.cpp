#include "execute/cuda/lanes/lane_plan.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "execute/peer_access.hpp"

namespace imbrex::cuda {
namespace {

using base::index;

bool has_tasks(const Plan& plan, Engine engine) {
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      if (queue.engine == engine && !queue.tasks.empty()) return true;
  return false;
}

// A rank's posts and waits, run one task at a time.
class Sides {
 public:
  Sides(const RankPlan& rank, std::size_t signals) : rank_(rank), posts_(signals), heads_(rank.queues.size()) {
    for (const Queue& queue : rank.queues) {
      std::vector<std::size_t>& later = later_.emplace_back();
      if (queue.engine != Engine::compute) continue;
      later.resize(queue.tasks.size());
      for (std::size_t t = 0; t < queue.tasks.size(); ++t)
        if (queue.tasks[t].mate != 0) later[t - index(queue.tasks[t].mate)] = t;
    }
  }

  bool met(const Task& task) const {
    return std::all_of(task.waits.begin(), task.waits.end(),
                       [&](const Wait& wait) { return posts_[index(wait.signal)] >= wait.count; });
  }
  void post(const Task& task) {
    for (const Post& p : task.posts) ++posts_[index(p.signal)];
  }

  // Each compute queue in its order; a task that brings a mate forward waits for what that one waits for, too.
  void run_kernel() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t q = 0; q < heads_.size(); ++q)
        for (; can_run(q); ++heads_[q], moved = true) post(rank_.queues[q].tasks[heads_[q]]);
    }
  }

  // The kernel task that has not run, in the first queue that has one: queue and task.
  std::optional<std::pair<int, std::size_t>> stuck() const {
    for (std::size_t q = 0; q < heads_.size(); ++q)
      if (heads_[q] < later_[q].size()) return {{static_cast<int>(q), heads_[q]}};
    return {};
  }

 private:
  bool can_run(std::size_t q) const {
    const std::size_t t = heads_[q];
    if (t >= later_[q].size()) return false;
    const auto& tasks = rank_.queues[q].tasks;
    return met(tasks[t]) && (later_[q][t] == 0 || met(tasks[later_[q][t]]));
  }

  const RankPlan& rank_;
  std::vector<std::uint32_t> posts_;             // by signal
  std::vector<std::size_t> heads_;               // by queue
  std::vector<std::vector<std::size_t>> later_;  // by compute queue and task: the mate after it; 0: none
};

class LanePlanner {
 public:
  LanePlanner(const Plan& plan, int rank) : plan_(plan), rank_(rank), signals_(index(own().signals)) {}

  LanePlan run() {
    check_tasks();
    find_ends();
    leave_libraries();
    LibraryProgram program = library_program(lanes_.libraries, rank_);
    check_room(program.forked.size());
    order(std::move(program));
    make_joints();
    lanes_.kernel = true;
    launch_beside_kernel();
    return std::move(lanes_);
  }

 private:
  // Who posts to a signal of the rank, and who waits for it.
  struct Signal {
    bool kernel_posts = false, library_posts = false;
    bool real = false;  // its counter counts: some wait for it is no event
  };

  const RankPlan& own() const { return plan_.ranks[index(rank_)]; }
  const Task& task_of(const LibraryStep& step) const { return own().queues[index(step.queue)].tasks[step.task]; }
  std::string where(int q, std::size_t t) const { return task_name(plan_, rank_, q, t); }

  template <typename F>
  void for_each(F&& f) const {
    for (int q = 0; q < std::ssize(own().queues); ++q)
      for (std::size_t t = 0; t < own().queues[index(q)].tasks.size(); ++t)
        f(own().queues[index(q)].engine == Engine::library, own().queues[index(q)].tasks[t], q, t);
  }

  void check_tasks() const {
    for_each([&](bool library, const Task& task, int q, std::size_t t) {
      IMBREX_EXPECTS(own().queues[index(q)].engine != Engine::copy,
                     "{}: with library queues, the CUDA executor runs no copy queues", where(q, t));
      if (!library) {
        const std::string reach = execute::reach_of(task, rank_);
        IMBREX_EXPECTS(reach.empty(), "{} {}; with library queues, tasks stay on their rank", where(q, t), reach);
        return;
      }
      IMBREX_EXPECTS(!std::holds_alternative<Block>(task.work), "{}: the CUDA executor runs no work of kind {}",
                     where(q, t), kind_of(task));
      IMBREX_EXPECTS(!std::holds_alternative<Product>(task.work),
                     "{}: with tiles of Imbrex' kernel, library queues run no products", where(q, t));
      for_each_region(task, [&](const Region& region) {
        const Buffer& b = plan_.buffers[index(region.buffer)];
        IMBREX_EXPECTS(b.role != BufferRole::workspace || b.copies == 1,
                       "{}: {} has {} copies; with tiles of Imbrex' kernel, library queues take workspaces of one",
                       where(q, t), b.name, b.copies);
      });
    });
  }

  template <typename F>
  static void for_each_region(const Task& task, F&& f) {
    if (const auto* collective = std::get_if<Collective>(&task.work)) {
      f(collective->from);
      f(collective->to);
    } else if (const auto* transfer = std::get_if<Transfer>(&task.work)) {
      if (!transfer->from.empty()) f(transfer->from), f(transfer->to);
    } else if (const auto* reduction = std::get_if<Reduction>(&task.work)) {
      for (const auto* regions : {&reduction->from, &reduction->to})
        for (const Region& region : *regions) f(region);
    }
  }

  void find_ends() {
    for_each([&](bool library, const Task& task, int q, std::size_t t) {
      for (const Post& post : task.posts) {
        IMBREX_EXPECTS(post.rank == rank_, "{}: posts to rank {}; with library queues, signals stay on a rank",
                       where(q, t), post.rank);
        Signal& signal = signals_[index(post.signal)];
        (library ? signal.library_posts : signal.kernel_posts) = true;
      }
    });
    for_each([&](bool library, const Task& task, int, std::size_t) {
      for (const Wait& wait : task.waits) {
        Signal& signal = signals_[index(wait.signal)];
        if (!library && signal.library_posts) lanes_.kernel_waits = true;
        if (!library || signal.kernel_posts) signal.real = true;
      }
    });
  }

  bool is_gate(const Wait& wait) const { return signals_[index(wait.signal)].kernel_posts; }

  // All ranks' are kept: the order in which others launch theirs is compared.
  void leave_libraries() {
    Plan& left = lanes_.libraries;
    left.problem = plan_.problem;
    left.signal_copies = plan_.signal_copies;
    left.buffers = plan_.buffers;
    std::optional<int> kept_free;
    for (int rank = 0; rank < std::ssize(plan_.ranks); ++rank) {
      RankPlan& to = left.ranks.emplace_back();
      to.signals = plan_.ranks[index(rank)].signals;
      int kept = 0;
      bool some = false;
      for (const Queue& queue : plan_.ranks[index(rank)].queues) {
        Queue& copy = to.queues.emplace_back();
        copy.engine = queue.engine;
        kept += queue.kept_free;
        if (queue.engine != Engine::library) continue;
        copy.tasks = queue.tasks;
        some = some || !queue.tasks.empty();
        for (Task& task : copy.tasks)
          if (rank == rank_) std::erase_if(task.waits, [&](const Wait& wait) { return is_gate(wait); });
      }
      if (some) kept_free = std::min(kept, kept_free.value_or(kept));
    }
    lanes_.kept_free = kept_free.value_or(0);
  }

  // The kept SMs hold what waits and what collectives run on.
  void check_room(std::size_t lanes) {
    if (std::cmp_greater_equal(lanes_.kept_free, lanes)) {
      if (lanes_.kernel_waits)
        for_each([&](bool, const Task& task, int q, std::size_t t) {
          const auto* work = std::get_if<Collective>(&task.work);
          IMBREX_EXPECTS(work == nullptr || work->backend == Backend::nccl,
                         "{}: tiles wait for collectives, whose backend must be nccl then: how many SMs Imbrex' own "
                         "take is not limited",
                         where(q, t));
        });
      return;
    }
    for_each([&](bool library, const Task& task, int q, std::size_t t) {
      for (const Wait& wait : task.waits)
        IMBREX_EXPECTS(library || !signals_[index(wait.signal)].library_posts,
                       "{}: waits for library tasks, and the plan keeps {} SMs free (kept_free); the kernel takes all "
                       "others, and each of the {} streams of library tasks needs one",
                       where(q, t), lanes_.kept_free, lanes);
    });
    lanes_.behind = true;
  }

  // As both sides would run, each step alone: kernel tasks as far as they come, then the first step, in the order
  // of `program`, that can begin.
  void order(LibraryProgram program) {
    const std::size_t count = program.steps.size();
    std::vector<std::vector<std::size_t>> streams(program.forked.size());
    for (std::size_t i = 0; i < count; ++i) streams[program.steps[i].stream].push_back(i);
    std::vector<std::size_t> heads(streams.size());
    std::vector<std::size_t> places(count, count);  // in the new order
    std::vector<LibraryStep> ordered;
    Sides sides(own(), signals_.size());
    const auto ready = [&](std::size_t i) {
      const LibraryStep& step = program.steps[i];
      return std::all_of(step.waits.begin(), step.waits.end(), [&](std::size_t j) { return places[j] < count; }) &&
             sides.met(task_of(step));
    };
    const auto first_stream = [&] {
      std::optional<std::size_t> found;
      for (std::size_t s = 0; s < streams.size(); ++s)
        if (heads[s] < streams[s].size() && ready(streams[s][heads[s]]) &&
            (!found || streams[s][heads[s]] < streams[*found][heads[*found]]))
          found = s;
      return found;
    };
    sides.run_kernel();
    while (const auto s = first_stream()) {
      const std::size_t i = streams[*s][heads[*s]++];
      places[i] = ordered.size();
      ordered.push_back(program.steps[i]);
      sides.post(task_of(program.steps[i]));
      sides.run_kernel();
    }
    for (std::size_t s = 0; s < streams.size(); ++s)
      if (heads[s] < streams[s].size()) {
        const LibraryStep& step = program.steps[streams[s][heads[s]]];
        throw Error(ErrorCode::invalid_input,
                    fmt::format("{}: waits for posts of tasks that come after it", where(step.queue, step.task)));
      }
    if (const auto stuck = sides.stuck())
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{}: waits for posts of tasks that come after it", where(stuck->first, stuck->second)));
    for (LibraryStep& step : ordered)
      for (std::size_t& before : step.waits) before = places[before];
    program.steps = std::move(ordered);
    lanes_.program = std::move(program);
  }

  void make_joints() {
    const auto& steps = lanes_.program.steps;
    std::vector<std::vector<int>> ended(lanes_.lanes());  // by stream: posts of the step that ended last
    std::vector<bool> begun(lanes_.lanes());
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::size_t stream = steps[i].stream;
      Joint joint{i, stream, false, !begun[stream], std::exchange(ended[stream], posts_of(steps[i])), {}};
      begun[stream] = true;
      std::map<int, std::uint32_t> gates;
      for (const Wait& wait : task_of(steps[i]).waits)
        if (is_gate(wait)) gates[wait.signal] = std::max(gates[wait.signal], wait.count);
      for (const auto& [signal, count] : gates) joint.gates.push_back({signal, count});
      // What a step posts must not wait for events that only the next one needs.
      if (!steps[i].waits.empty() && !joint.posts.empty())
        lanes_.joints.push_back({i, stream, true, false, std::exchange(joint.posts, {}), {}});
      if (joint.first || !joint.posts.empty() || !joint.gates.empty()) lanes_.joints.push_back(std::move(joint));
      // Nor after what other lanes launch, where there is one queue for all.
      if (i + 1 < steps.size() && steps[i + 1].stream != stream && !ended[stream].empty())
        lanes_.joints.push_back({i + 1, stream, true, false, std::exchange(ended[stream], {}), {}});
    }
    for (std::size_t stream = 0; stream < lanes_.lanes(); ++stream)
      if (begun[stream]) lanes_.joints.push_back({steps.size(), stream, false, false, std::move(ended[stream]), {}});
  }

  // The kernel goes first: where the driver has one queue for all streams, what waits for it must be queued after it.
  // What it waits for is launched after it, and finds free SMs.
  void launch_beside_kernel() {
    std::vector<Launch>& to = lanes_.launches;
    using enum Launch::Kind;
    if (!lanes_.behind) to.push_back({begin});
    to.push_back({kernel});
    if (lanes_.behind) to.push_back({begin});
    for (std::size_t s = 0; s < lanes_.lanes(); ++s) to.push_back({fork, 0, s});
    const auto& steps = lanes_.program.steps;
    std::size_t j = 0;
    const auto launch_joints = [&](std::size_t i, bool early) {
      for (; j < lanes_.joints.size() && lanes_.joints[j].step == i && lanes_.joints[j].early == early; ++j)
        to.push_back({joint, j, lanes_.joints[j].stream});
    };
    for (std::size_t i = 0; i < steps.size(); ++i) {
      launch_joints(i, true);
      for (const std::size_t before : steps[i].waits) to.push_back({await, before, steps[i].stream});
      launch_joints(i, false);
      to.push_back({step, i, steps[i].stream});
    }
    launch_joints(steps.size(), false);
    for (std::size_t s = 0; s < lanes_.lanes(); ++s) to.push_back({join, 0, s});
  }

  std::vector<int> posts_of(const LibraryStep& step) const {
    std::vector<int> posts;
    for (const Post& post : task_of(step).posts)
      if (signals_[index(post.signal)].real) posts.push_back(post.signal);
    return posts;
  }

  const Plan& plan_;
  int rank_;
  std::vector<Signal> signals_;
  LanePlan lanes_;
};

// Lanes without a kernel.
LanePlan libraries_alone(const Plan& plan, int rank) {
  LanePlan lanes;
  lanes.libraries = plan;
  lanes.program = library_program(plan, rank);
  std::vector<Launch>& to = lanes.launches;
  using enum Launch::Kind;
  to.push_back({begin});
  for (std::size_t s = 0; s < lanes.lanes(); ++s)
    if (lanes.program.forked[s]) to.push_back({fork, 0, s});
  for (std::size_t i = 0; i < lanes.program.steps.size(); ++i) {
    const LibraryStep& one = lanes.program.steps[i];
    for (const std::size_t before : one.waits) to.push_back({await, before, one.stream});
    to.push_back({step, i, one.stream});
  }
  for (const std::size_t last : lanes.program.ends) to.push_back({await, last});
  // The first lane is the caller's stream.
  for (Launch& launch : to)
    if (launch.stream == 0) launch.stream = Launch::callers;
  return lanes;
}

}  // namespace

bool runs_in_lanes(const Plan& plan) { return has_tasks(plan, Engine::library) && has_tasks(plan, Engine::compute); }

LanePlan lane_plan(const Plan& plan, int rank) {
  return runs_in_lanes(plan) ? LanePlanner(plan, rank).run() : libraries_alone(plan, rank);
}

// Lanes behind the kernel begin when it has ended; NCCL keeps to the SMs that the plan keeps free for it.
std::string refusal_beside_others(const LanePlan& lanes, int sms_for_others) {
  if (sms_for_others == 0 || !lanes.kernel || lanes.behind) return {};
  const bool own = std::any_of(lanes.program.steps.begin(), lanes.program.steps.end(), [](const LibraryStep& step) {
    const auto* work = std::get_if<Collective>(&step.work);
    return work != nullptr && work->backend != Backend::nccl;
  });
  if (!own) return {};
  return fmt::format(
      "sms_for_others = {}: Imbrex' own collectives would run beside the plan's kernel and take the SMs that it "
      "leaves; "
      "with kept_free = 0 they run after it, and those of backend nccl take no more than kept_free",
      sms_for_others);
}

}  // namespace imbrex::cuda
