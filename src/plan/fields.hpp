// What a problem, a strategy and a plan are, field by field, as text: for messages that name the field in which two
// differ.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "imbrex/plan.hpp"
#include "plan/given_knobs.hpp"
#include "plan/task_stream.hpp"

namespace imbrex::plan {

/// (name, value), in one order for all values of a kind.
using Fields = std::vector<std::pair<std::string, std::string>>;

void add_fields(Fields& fields, const Problem& problem);
void add_fields(Fields& fields, const Knobs& knobs);
/// What a caller may leave open.
void add_fields(Fields& fields, const std::optional<Strategy>& strategy, const GivenKnobs& knobs);

/// A plan: its problem, and what made it; of one whose tasks are stored, also a digest of each rank's tasks.
Fields fields_of(const TaskStream& tasks);

}  // namespace imbrex::plan
