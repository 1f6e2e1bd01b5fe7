#include "execute/cuda/times/task_spans.hpp"

#include <fmt/format.h>

namespace imbrex::cuda {
namespace {

// Shorter ones are the look at a signal that was there.
constexpr std::uint64_t least_wait_ns = 500;

class Spans {
 public:
  Spans(const Plan& plan, int rank, double to_host) : plan_(plan), rank_(rank), to_host_(to_host) {}

  void add(const TaskEntry& task, const TaskTimes& t) {
    const std::string name = label(plan_.ranks[static_cast<std::size_t>(rank_)].queues[task.queue].tasks[task.task]);
    // Groups take turns to multiply, but one may store, or serve another task, meanwhile.
    const std::string loads = fmt::format("loads {}", t.sm), stores = fmt::format("stores {} group {}", t.sm, t.group);
    if (task.kind == TaskKind::tile) {
      wait(loads, name, t.load_wait, t.load_met);
      add(fmt::format("sm {}", t.sm), name, Span::Kind::compute, t.begin, t.multiplied);
      wait(loads, name, t.add_wait, t.add_met);
      add(stores, "store " + name, Span::Kind::copy, t.multiplied, t.end);
      return;
    }
    wait(stores, name, t.load_wait, t.load_met);
    const Span::Kind kind = task.kind == TaskKind::transfer    ? Span::Kind::copy
                            : task.kind == TaskKind::reduction ? Span::Kind::reduction
                                                               : Span::Kind::signal;
    add(stores, name, kind, t.begin, t.end);
  }

  std::vector<Span> take() { return std::move(spans_); }

 private:
  void wait(const std::string& row, const std::string& name, std::uint64_t begin, std::uint64_t end) {
    if (begin > 0 && end >= begin + least_wait_ns) add(row, "wait: " + name, Span::Kind::wait, begin, end);
  }

  void add(const std::string& row, const std::string& name, Span::Kind kind, std::uint64_t begin, std::uint64_t end) {
    if (begin == 0 || end < begin) return;  // it was given up
    spans_.push_back({rank_, row, name, kind, at(begin), at(end)});
  }

  double at(std::uint64_t ns) const { return static_cast<double>(ns) * 1e-9 + to_host_; }

  const Plan& plan_;
  int rank_;
  double to_host_;
  std::vector<Span> spans_;
};

}  // namespace

std::vector<Span> task_spans(const Plan& plan, int rank, const std::vector<TaskEntry>& tasks,
                             const std::vector<TaskTimes>& times, double to_host) {
  Spans spans(plan, rank, to_host);
  for (std::size_t i = 0; i < tasks.size(); ++i)
    if (tasks[i].kind != TaskKind::none && tasks[i].kind != TaskKind::peer_cta) spans.add(tasks[i], times[i]);
  return spans.take();
}

}  // namespace imbrex::cuda
