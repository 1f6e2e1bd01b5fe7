// The groups of strategy signaled: what follows each other in a product's order, cut into stretches.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::plan {

/// "1, 2, 4"; empty where there are none.
std::string text_of(const GroupSizes& groups);

/// From sizes in their order. Throws Error(invalid_input) where there are more than fit, or one is not from 1 to
/// 2^31 - 1.
GroupSizes group_sizes(const std::vector<std::int64_t>& sizes);

/// How `units` (rows of tiles, or tiles) are grouped: as the knobs say, or in `chunks` groups as equal as can be, none
/// of them empty. Throws Error(invalid_input) unless the knobs' groups cover the units; `what` names these.
std::vector<std::int64_t> groups_of_units(const Knobs& knobs, std::int64_t units, const char* what);

/// Throws Error(invalid_input) for a size that is negative, or that stands after a 0.
void validate_groups(const GroupSizes& groups);

}  // namespace imbrex::plan
