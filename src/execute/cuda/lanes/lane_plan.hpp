// From a plan with tiles beside library queues to the lanes of one rank's GPU: one kernel for the compute queues, a
// stream for each library queue, and what joins them. Pure host code.
//
// A wait for what library steps alone post is an event, or nothing on one stream. Any other wait of a library step is a
// gate: a small kernel that waits for the counter. What kernel tasks or gates wait for, library steps post: a small
// kernel behind them adds to the counter. Between two steps of a stream, posts and gate are one kernel, a joint.
//
// Room. The kernel's blocks wait for nobody's leave to start, and for each other's posts: all of them must run at once.
// So a lane's first joint also waits until all blocks have read the epoch. Until then a joint of each lane is all that
// may stand where a block should, and as many SMs, or pairs of them, are taken off the kernel; behind it, what the lane
// runs finds the SMs that the plan keeps free.
//
// Order. All streams may share one hardware queue, where nothing may stand before what it waits for. The kernel is
// launched first, then the steps in an order in which each one's posts come from before it; a plan without such an
// order is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "execute/cuda/libraries/library_translate.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::cuda {

struct Gate {
  int signal = 0;
  std::uint32_t count = 0;

  bool operator==(const Gate&) const = default;
};

/// Posts for the step of its stream that ended last, then waits.
struct Joint {
  std::size_t step = 0;  ///< it is launched right before this one; all of them: at the lane's end
  std::size_t stream = 0;
  bool early = false;         ///< before the step's events are waited for; else behind them
  bool first = false;         ///< on its stream
  std::vector<int> posts{};   ///< signals, each to be added to once
  std::vector<Gate> gates{};  ///< one a signal
};

struct LanePlan {
  /// The library queues alone, which `program` refers to: kernel tasks and what library steps wait for of them left
  /// out.
  Plan libraries;
  /// In the order of the launch. All streams are the lanes' own, fork where the epoch begins and join at its end:
  /// what forked and ends say is for programs without a kernel.
  LibraryProgram program;
  /// In the order of the launch. Each stream has one before its first step, others where something is posted or waited
  /// for, and one at its end.
  std::vector<Joint> joints;
  bool kernel_waits = false;  ///< for library steps
  int kept_free = 0;          ///< SMs; the least of all ranks
  /// No SMs are kept free, and the kernel waits for no lane: lanes fork behind the kernel instead.
  bool behind = false;

  std::size_t lanes() const { return program.forked.size(); }
};

/// Whether the plan has library tasks and compute tasks.
bool runs_in_lanes(const Plan& plan);

/// `rank`'s part. The plan must have passed check_format. Throws Error(invalid_input) naming the task that does not
/// fit.
LanePlan lane_plan(const Plan& plan, int rank);

}  // namespace imbrex::cuda
