// Plans of embedding_all_to_all.
#pragma once

#include "imbrex/plan.hpp"

namespace imbrex::plan {

/// sequential: all bags into a workspace, a library's all-to-all, and copies of the columns into their places.
/// decomposed: the same in `chunks` slices of the batch, the bags on one lane and the rest on another.
/// fused: bags go straight to their owner's output, blocks of tile_m rows of the batch and all of the rank's tables:
/// slice by slice those of the other ranks, beginning with the next one's, then its own, and one post a block. Strategy
/// signaled is refused. Problem and knobs are valid.
Plan embedding_plan(const Problem& problem, Strategy strategy, const Knobs& knobs);

}  // namespace imbrex::plan
