// One worker of one rank: takes tasks from the queues it serves and drives them through their waits. It never blocks in
// one task while another of its queues could go on.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "execute/cpu/kernels.hpp"
#include "imbrex/execute.hpp"

namespace imbrex::execute {

/// What the workers of a rank share during one epoch.
struct RankEpoch {
  const Plan& plan;
  const HeapLayout& layout;
  const RankMemory& memory;
  World& world;
  const CpuOptions& options;
  const std::map<int, std::vector<const Collective*>>& collectives;  // see collective_groups
  std::vector<std::atomic<std::size_t>>& heads;                      // by queue: the next task to take
  std::atomic<bool>& stop;                                           // another worker failed
  std::uint64_t epoch = 0;
};

class Worker {
 public:
  /// Worker 0 serves every queue, the others compute queues only.
  Worker(RankEpoch& shared, int index);

  /// Returns when no task is left for it. Throws Error(runtime_failure) past the wait limit or when the world failed.
  void run();

  std::vector<Span> spans;

 private:
  struct Lane {
    int queue = 0;
    bool taken = false, exhausted = false;
    std::size_t task = 0;
    int phase = 0;
    std::int64_t k = 0;         // columns of A multiplied so far
    Kernels::Product product;   // which may wait at its epilogue while other lanes multiply theirs
    double blocked_since = -1;  // of the current wait, timeline only
  };

  bool step(Lane& lane);
  bool step_tile(Lane& lane, const Task& task, const Tile& tile);
  bool step_collective(Lane& lane, const Task& task, const Collective& collective);
  bool step_simple(Lane& lane, const Task& task);
  bool take(Lane& lane);
  void done(Lane& lane, const Task& task);
  /// Whether all waits that `needed` selects are met; notes the time spent blocked.
  template <typename Needed>
  bool met(Lane& lane, const Task& task, Needed&& needed);
  const Task& task_of(const Lane& lane) const;
  void pause();
  void idle(double& last_progress, int& rounds);
  std::string diagnose() const;
  template <typename F>
  void timed(const Lane& lane, Span::Kind kind, F&& work);

  RankEpoch& shared_;
  int index_;
  Kernels kernels_;
  std::vector<Lane> lanes_;
  std::mt19937_64 random_;
};

}  // namespace imbrex::execute
