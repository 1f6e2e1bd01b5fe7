// What a plan runs, as one number: a change that leaves it as it was changed nothing that runs.
#pragma once

#include <cstdint>
#include <vector>

#include "imbrex/plan.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::plan {

/// 64 bits over the buffers, the counters, and every rank's queues with their tasks in order. The problem, the
/// strategy, its knobs and the buffers' names do not enter: no task is another one for them. The number is the same in
/// every build and on every machine.
///
/// It is an FNV-1a hash: of the tasks of each queue, then of the rest with these hashes. A field enters it as a tag and
/// a number, and only where it differs from its default, so that a plan keeps its digest when the format gets a new
/// field with a default, under a new tag. A kind of task is a tag, too. Tags, defaults and the numbers of enumerators
/// never change, and no tag is used again for something else.
class Digest {
 public:
  /// The digest of a plan whose tasks come one by one; those in `frame` do not count. `frame` outlives the digest.
  explicit Digest(const Plan& frame);

  /// Tasks of one queue come in its order.
  void add(const TaskPlace& place, const Task& task);

  /// The digest of the frame and the tasks that have come.
  std::uint64_t value() const;
  /// The parts of it: of one rank's counters, queues and tasks; of what the ranks share.
  std::uint64_t value_of_rank(int rank) const;
  std::uint64_t value_of_buffers() const;

 private:
  const Plan* plan_;
  std::vector<std::vector<std::uint64_t>> queues_;  // by rank and queue: the hash of its tasks
};

/// The digest of a plan that has its tasks.
std::uint64_t digest_of(const Plan& plan);

}  // namespace imbrex::plan
