// Follows the data: every read finds what it needs, written before it, and every output element becomes the sum that
// the problem asks for.
#pragma once

#include <optional>

#include "plan/check/graph.hpp"

namespace imbrex::plan {

/// Faults `race`, `coverage` and `reuse` (of buffers). The graph's find_deadlock must have found none.
std::optional<Finding> find_dataflow_fault(const Plan& plan, Graph& graph);

}  // namespace imbrex::plan
