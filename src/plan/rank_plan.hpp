// A plan for one rank: making all ranks' tasks is nearly all that a new shape costs the host.
#pragma once

#include "imbrex/plan.hpp"

namespace imbrex::plan {

/// What `rank` needs of make_plan's plan to run it: buffers, signals and queues of all ranks, so that places in memory
/// are the same, but tasks of this one only. In place of the others', each of their queues has up to two empty
/// transfers that carry the posts to this rank: first those before which nothing of the queue waits, then the rest.
/// Which buffers peers touch shows in any one rank's tasks, as it does in the whole plan. Such a plan passes
/// check_format; `check`, which follows data through all ranks, is for the whole one. Plans with library collectives,
/// which are short, come whole, and so do those in which a rank owns nothing.
Plan make_rank_plan(const Problem& problem, Strategy strategy, const Knobs& knobs, int rank);

}  // namespace imbrex::plan
