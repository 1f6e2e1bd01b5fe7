// The rows of a timeline, in the order that both writers show them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "imbrex/timeline.hpp"

namespace imbrex::execute {

struct TimelineRow {
  int rank = 0;
  std::string name;
  std::vector<const Span*> spans;  ///< in order of begin
};

/// By rank; within a rank workers by number, what they load and store, then engines, then links.
std::vector<TimelineRow> rows_of(const Timeline& timeline);

/// What comes before the number of a row that is one of many alike ("sm 3", "worker 0"); empty for others.
std::string stem_of_many(const std::string& row);

std::string_view name_of(Span::Kind kind);

}  // namespace imbrex::execute
