// From the times that kernels write down to spans of a timeline. Pure host code.
#pragma once

#include <vector>

#include "execute/cuda/tables/table.hpp"
#include "imbrex/plan.hpp"
#include "imbrex/timeline.hpp"

namespace imbrex::cuda {

/// One rank's epoch. `times[i]` are those of `tasks[i]`; `to_host`: seconds to add to the GPU's clock for the host's.
/// Rows: "sm 3", products; "loads 3", waits of what loads for them; "stores 3 group 1", what else an SM's
/// groups of threads do, which take turns to multiply.
std::vector<Span> task_spans(const Plan& plan, int rank, const std::vector<TaskEntry>& tasks,
                             const std::vector<TaskTimes>& times, double to_host);

}  // namespace imbrex::cuda
