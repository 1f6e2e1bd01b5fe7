// A rank, a process, that is lost while the others run a plan.
#pragma once

#include "imbrex/plan.hpp"

namespace imbrex::test {

struct LossCase {
  enum class How {
    ends,   ///< the process ends
    stops,  ///< it lives on, and does nothing more
  };
  enum class When {
    before_a_call,
    before_replays,   ///< of a graph of two epochs, none of which has run
    in_a_replay,      ///< the others and the lost one have replays queued that run
    between_replays,  ///< some are over on every rank
  };

  Plan plan;
  How how = How::ends;
  When when = When::before_a_call;
  double wait_limit = 30;  ///< seconds
  /// Where nothing of ours runs on the GPU, a process may end before its call returns, with the lost rank's name on its
  /// standard error.
  bool may_end_untold = false;
};

/// Runs the plan on its ranks, as processes, of which rank 1 is lost. Expects every other one to be told within the
/// limit, and what happens there takes: who was lost, or who waited and for what.
void expect_others_told(const LossCase& c);

}  // namespace imbrex::test
