#include "ops/plans_by_size.hpp"

#include <algorithm>

namespace imbrex::ops {

bool PlansBySize::has(std::int64_t m) const {
  return std::any_of(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.m == m; });
}

Execution& PlansBySize::at(std::int64_t m) {
  auto found = std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) { return kept.m == m; });
  if (found == kept_.end()) {
    Kept made{m, make_(m)};
    if (kept_.size() == most_) kept_.pop_back();
    found = kept_.insert(kept_.end(), std::move(made));
  }
  std::rotate(kept_.begin(), found, found + 1);
  if (clock_ != nullptr) kept_.front().called = ++*clock_;
  return *kept_.front().execution;
}

}  // namespace imbrex::ops
