// Plans of embedding_all_to_all that no strategy makes, and that are sound: what executors must run as it stands.
#pragma once

#include <string>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::test {

struct EditedPlan {
  std::string name;
  Plan plan;
};

/// Other plans of the same problem; `made` is of strategy fused, on one host.
std::vector<EditedPlan> edited_bags(const Plan& made);

}  // namespace imbrex::test
