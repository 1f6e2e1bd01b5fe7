#include "plan/wave_groups.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "plan/builder.hpp"

namespace imbrex::plan {
namespace {

std::vector<std::int64_t> list_of(const GroupSizes& groups) {
  return {groups.begin(), std::find(groups.begin(), groups.end(), 0)};
}

}  // namespace

std::string text_of(const GroupSizes& groups) { return fmt::format("{}", fmt::join(list_of(groups), ", ")); }

GroupSizes group_sizes(const std::vector<std::int64_t>& sizes) {
  GroupSizes groups{};
  IMBREX_EXPECTS(sizes.size() <= groups.size(), "{} groups: there may be {}", sizes.size(), groups.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    IMBREX_EXPECTS(sizes[i] > 0 && sizes[i] <= most_extent, "a group of {}: it must be from 1 to {}", sizes[i],
                   most_extent);
    groups[i] = base::narrow<std::int32_t>(sizes[i], "size of a group");
  }
  return groups;
}

void validate_groups(const GroupSizes& groups) {
  const auto end = std::find(groups.begin(), groups.end(), 0);
  IMBREX_EXPECTS(std::all_of(end, groups.end(), [](std::int32_t size) { return size == 0; }),
                 "knob groups = {}: a size follows a 0, which ends the list", fmt::join(groups, ", "));
  for (const std::int32_t size : groups)
    IMBREX_EXPECTS(size >= 0, "knob groups = {}: a size of {}; it must not be negative", fmt::join(groups, ", "), size);
}

std::vector<std::int64_t> groups_of_units(const Knobs& knobs, std::int64_t units, const char* what) {
  std::vector<std::int64_t> sizes = list_of(knobs.groups);
  if (sizes.empty()) {
    const std::int64_t groups = std::min<std::int64_t>(knobs.chunks, units);
    for (std::int64_t g = 0; g < groups; ++g) sizes.push_back(part_of(units, groups, g).size);
    return sizes;
  }
  const std::int64_t covered = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  IMBREX_EXPECTS(covered == units, "knob groups = {}: the groups have {} {}, and there are {}", fmt::join(sizes, ", "),
                 covered, what, units);
  return sizes;
}

}  // namespace imbrex::plan
