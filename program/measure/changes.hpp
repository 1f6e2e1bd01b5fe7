// Knobs by name.
#pragma once

#include <string_view>

#include "imbrex/plan.hpp"

namespace imbrex::program {

/// `base` with some knobs changed: "KNOB=VALUE,KNOB=VALUE", names and values as in a plan file. Throws
/// Error(invalid_input) naming the text and the rule.
Knobs with_changes(const Knobs& base, std::string_view changes);

}  // namespace imbrex::program
