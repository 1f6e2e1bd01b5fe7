// Plans that multiply nothing, as one rank's GPU runs them: step by step on a stream. A step is a launch of a kind of
// work, which computes as many blocks of the table as the kind takes at once, a copy or a sum, or what stands between
// them: posts and waits. Pure host code.
#pragma once

#include <cstdint>
#include <map>
#include <variant>
#include <vector>

#include "execute/cuda/work_on_gpu.hpp"

namespace imbrex::cuda {

/// Posts, then waits: entries of the table, one after another.
struct SignalStep {
  std::uint32_t first_post = 0, posts = 0, first_wait = 0, waits = 0;
  std::uint32_t task = 0;  ///< the table's, of messages

  bool operator==(const SignalStep&) const = default;
};

/// A transfer or a reduction of the table.
struct MoveStep {
  std::uint32_t task = 0;

  bool operator==(const MoveStep&) const = default;
};

struct BlockStep {
  WorkKind kind{};
  std::size_t launch = 0;  ///< among those of its kind

  bool operator==(const BlockStep&) const = default;
};

using Step = std::variant<SignalStep, MoveStep, BlockStep>;

struct StepList {
  std::vector<Step> steps;
  std::map<WorkKind, std::vector<BlockLaunch>> launches;
  /// Steps that read the epoch, and advance it, the last of them for the next call: the signal steps, which come first
  /// and last. 0: nothing depends on an epoch.
  std::uint32_t readers = 0;
};

/// Whether the plan's tasks run in steps: blocks in compute queues, with transfers and reductions, and nothing else.
bool runs_in_steps(const Plan& plan);

/// Throws Error(invalid_input) naming the first task of any rank that no step runs.
void expect_steps(const Plan& plan);

/// For a plan of one queue a rank. Launches are complete before what follows them begins, but tasks that share one
/// run as tasks of several workers do.
StepList step_list(const Plan& plan, int rank, const RankTable& table);

}  // namespace imbrex::cuda
