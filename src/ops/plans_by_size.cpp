#include "ops/plans_by_size.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>

#include "plan/problem.hpp"

namespace imbrex::ops {

std::vector<std::int64_t> sizes_to_survey(const Problem& largest) {
  std::vector<std::int64_t> sizes;
  const std::int64_t unit = plan::splits_m(largest.op) ? largest.ranks : 1;
  // Eight to an octave: a choice that serves fewer sizes in a row is rare.
  for (std::int64_t units = largest.m / unit; units > 0;
       units -= std::max<std::int64_t>(1, std::bit_ceil(static_cast<std::uint64_t>(units)) / 16))
    sizes.push_back(units * unit);
  return sizes;
}

std::size_t table_bytes_of(const Problem& problem, std::int64_t m) {
  constexpr std::int64_t tile = 128;
  const auto tiles_of = [](std::int64_t extent) { return (extent + tile - 1) / tile; };
  const std::int64_t of_rank = (m + problem.ranks - 1) / problem.ranks,
                     tiles = problem.ranks * tiles_of(of_rank) *
                             tiles_of(problem.n + problem.more_n[0] + problem.more_n[1]),
                     bytes_of_tile = of_rank > 512 ? 640 : 1280;  // few rows have smaller tiles
  return static_cast<std::size_t>(tiles * bytes_of_tile);
}

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
