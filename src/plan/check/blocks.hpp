// Rules of blocks, whatever their kind, and which of them are shares of one.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "plan/check/graph.hpp"
#include "plan/work.hpp"

namespace imbrex::plan {

/// The rule of the format that a block breaks, whose regions are in bounds, or "".
std::string broken_rule(const BlockPlace& place);

/// Tasks that are one block together: for each that has other shares, all of them, by share.
using Shares = std::map<TaskId, std::vector<TaskId>>;

/// Fills in `shares`. The fault, if a share is missing or there twice.
std::optional<Finding> find_shares(const Plan& plan, const Graph& graph, Shares& shares);

}  // namespace imbrex::plan
