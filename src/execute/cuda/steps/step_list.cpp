#include "execute/cuda/steps/step_list.hpp"

#include <algorithm>
#include <utility>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/task_stream.hpp"
#include "problem/descriptor.hpp"

namespace imbrex::cuda {
namespace {

using base::index;

class Listing {
 public:
  explicit Listing(const RankTable& table) : table_(table) {}

  void post_for(std::size_t task) {
    const TaskEntry& entry = table_.tasks[task];
    add(entry.posts, entry.post_count, &SignalStep::first_post, &SignalStep::posts, task);
  }
  void wait_for(std::size_t task) {
    const TaskEntry& entry = table_.tasks[task];
    add(entry.waits, std::uint32_t{entry.load_waits} + entry.epilogue_waits, &SignalStep::first_wait,
        &SignalStep::waits, task);
  }
  void move(std::size_t task) { list_.steps.emplace_back(MoveStep{base::narrow<std::uint32_t>(task, "tasks")}); }
  void launch(WorkKind kind, const BlockLaunch& launch) {
    auto& all = list_.launches[kind];
    list_.steps.emplace_back(BlockStep{kind, all.size()});
    all.push_back(launch);
  }

  StepList finish() {
    const bool alternate = std::any_of(table_.regions.begin(), table_.regions.end(),
                                       [](const RegionEntry& r) { return r.copy_stride != 0; });
    if (table_.waits.empty() && table_.posts.empty() && !alternate) return std::move(list_);
    // Peers see that this rank is in the epoch before anything of it runs; what reads the epoch comes before the last.
    if (last() == nullptr) list_.steps.emplace_back(SignalStep{});
    if (!std::holds_alternative<SignalStep>(list_.steps.front())) list_.steps.insert(list_.steps.begin(), SignalStep{});
    for (const Step& step : list_.steps) list_.readers += std::holds_alternative<SignalStep>(step);
    return std::move(list_);
  }

 private:
  SignalStep* last() { return list_.steps.empty() ? nullptr : std::get_if<SignalStep>(&list_.steps.back()); }

  // Joins the last step where it is one of signals, and its entries lie before these.
  void add(std::uint32_t begin, std::uint32_t count, std::uint32_t SignalStep::*first, std::uint32_t SignalStep::*held,
           std::size_t task) {
    if (count == 0) return;
    SignalStep* step = last();
    const bool posts_after_waits = step != nullptr && held == &SignalStep::posts && step->waits > 0;
    const bool joins =
        step != nullptr && !posts_after_waits && (step->*held == 0 || step->*first + step->*held == begin);
    if (!joins) step = &std::get<SignalStep>(list_.steps.emplace_back(SignalStep{}));
    if (step->*held == 0) step->*first = begin;
    step->*held += count;
    step->task = base::narrow<std::uint32_t>(task, "tasks");
  }

  const RankTable& table_;
  StepList list_;
};

}  // namespace

bool runs_in_steps(const Plan& plan) {
  bool blocks = false;
  for (const RankPlan& rank : plan.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks) {
        const bool block = std::holds_alternative<Block>(task.work);
        if (queue.engine == Engine::library ||
            (!block && !std::holds_alternative<Transfer>(task.work) && !std::holds_alternative<Reduction>(task.work)))
          return false;
        blocks = blocks || block;
      }
  return blocks && !problem::multiplies(plan.problem);
}

void expect_steps(const Plan& plan) {
  plan::for_each_task(plan, [&](const plan::TaskPlace& place, const Task& task) {
    const auto where = [&] { return task_name(place.rank, place.queue, place.index, task); };
    if (const auto* sum = std::get_if<Reduction>(&task.work))
      IMBREX_EXPECTS(sum->from.size() + sum->to.size() <= most_move_regions,
                     "{}: {} sources and {} destinations; the CUDA executor takes {} together", where(),
                     sum->from.size(), sum->to.size(), most_move_regions);
    if (const auto* block = std::get_if<Block>(&task.work)) {
      const std::string refusal = refusal_of_block(plan, place.rank, *block);
      IMBREX_EXPECTS(refusal.empty(), "{}: {}", where(), refusal);
    }
  });
}

StepList step_list(const Plan& plan, int rank, const RankTable& table) {
  Listing listing(table);
  const std::vector<TaskEntry>& tasks = table.tasks;
  for (std::size_t i = 0; i < tasks.size();) {
    if (tasks[i].kind != TaskKind::block) {
      listing.wait_for(i);
      if (tasks[i].kind != TaskKind::signal) listing.move(i);
      listing.post_for(i);
      ++i;
      continue;
    }
    const std::uint32_t kind = block_of(tasks[i]).kind;
    std::size_t end = i;
    while (end < tasks.size() && tasks[end].kind == TaskKind::block && block_of(tasks[end]).kind == kind) ++end;
    const auto number = static_cast<WorkKind>(kind);
    for (const BlockLaunch& launch : work_on_gpu(number)->launches(plan, rank, table, i, end)) {
      // One that does not signal has one block.
      if (!launch.signals) listing.wait_for(launch.first);
      listing.launch(number, launch);
      if (!launch.signals) listing.post_for(launch.first);
    }
    i = end;
  }
  return listing.finish();
}

}  // namespace imbrex::cuda
