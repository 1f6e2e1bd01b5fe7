// From a plan with library queues to the lanes of one rank's GPU: one kernel for the compute queues, if there are some,
// a stream for each library queue, and what joins them. Pure host code.
//
// Without a kernel, lanes are joined by events alone (libraries/library_translate.hpp), and the first one runs on the
// caller's stream. What follows is about lanes that run concurrently with a kernel.
//
// A wait for what library steps alone post is an event, or nothing on one stream. Any other wait of a library step is a
// gate: a small kernel that waits for the counter. What kernel tasks or gates wait for, library steps post: a small
// kernel after them adds to the counter. Between steps of a stream, posts and gate are one kernel, a joint.
//
// Room. The kernel's blocks start without waiting, and wait for each other's posts: all of them must run at once.
// So a lane's first joint also waits until all blocks have read the epoch. Until then a joint of each lane is all that
// may stand where a block should, and as many SMs, or pairs of them, are taken off the kernel; after it, what the lane
// runs finds the SMs that the plan keeps free.
//
// Order. All streams may share one hardware queue, where nothing may stand before what it waits for. The kernel is
// launched first, then the steps in an order in which each one's posts come from before it; a plan without such an
// order is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
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
  bool early = false;         ///< before the step's events are waited for; else after them
  bool first = false;         ///< on its stream
  std::vector<int> posts{};   ///< signals, each to be added to once
  std::vector<Gate> gates{};  ///< one a signal
};

/// What an epoch puts on a rank's streams, one after another.
struct Launch {
  enum class Kind {
    kernel,  ///< Imbrex' kernel
    begin,   ///< the event after which lanes fork off
    fork,    ///< a wait for that event
    joint,   ///< `number` of LanePlan::joints
    await,   ///< a wait for the end of step `number`
    step,    ///< `number` of LanePlan::program, and an event where another stream waits for its end
    join,    ///< the caller's stream waits for all that this one was given
  };
  static constexpr std::size_t callers = ~std::size_t{0};

  Kind kind = Kind::step;
  std::size_t number = 0;
  std::size_t stream = callers;  ///< a lane's number, or the caller's

  bool operator==(const Launch&) const = default;
};

struct LanePlan {
  /// The library queues alone, which `program` refers to: kernel tasks and what library steps wait for of them left
  /// out.
  Plan libraries;
  /// In the order of the launch.
  LibraryProgram program;
  /// In the order of the launch. With a kernel, each stream has one before its first step, others where something is
  /// posted or waited for, and one at its end.
  std::vector<Joint> joints;
  std::vector<Launch> launches;
  bool kernel = false;        ///< there are compute tasks
  bool kernel_waits = false;  ///< for library steps
  int kept_free = 0;          ///< SMs; the least of all ranks
  /// No SMs are kept free, and the kernel waits for no lane: lanes fork after the kernel instead.
  bool behind = false;

  std::size_t lanes() const { return program.forked.size(); }
};

/// Whether the plan has library tasks and compute tasks.
bool runs_in_lanes(const Plan& plan);

/// `rank`'s part of a plan that runs_by_libraries, which must have passed check_format. Throws Error(invalid_input)
/// naming the task that does not fit.
LanePlan lane_plan(const Plan& plan, int rank);

/// Why lanes that run concurrently with a kernel do not leave so many SMs to kernels of others; empty where they do.
std::string refusal_beside_others(const LanePlan& lanes, int sms_for_others);

}  // namespace imbrex::cuda
