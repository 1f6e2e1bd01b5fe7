#include "execute/timeline_rows.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace imbrex {
namespace {

// Class, name without its number, number: "sm 10" comes after "sm 9", and links come last.
std::tuple<int, std::string, long> sort_key(const std::string& row) {
  const auto space = row.rfind(' ');
  std::string stem = row;
  long number = -1;
  if (space != std::string::npos && space + 1 < row.size() && row.size() - space <= 10 &&
      std::all_of(row.begin() + static_cast<std::ptrdiff_t>(space) + 1, row.end(),
                  [](char c) { return c >= '0' && c <= '9'; })) {
    stem = row.substr(0, space);
    number = std::stol(row.substr(space + 1));
  }
  const int group = is_worker(row) ? 0 : stem == "egress" ? 2 : stem == "ingress" ? 3 : 1;
  return {group, stem, number};
}

}  // namespace

bool is_worker(const std::string& row) { return row.starts_with("sm ") || row.starts_with("worker "); }

std::string_view name_of(Span::Kind kind) {
  switch (kind) {
    case Span::Kind::compute: return "compute";
    case Span::Kind::copy: return "copy";
    case Span::Kind::collective: return "collective";
    case Span::Kind::reduction: return "reduction";
    case Span::Kind::wait: return "wait";
    case Span::Kind::signal: return "signal";
  }
  return "?";
}

std::vector<TimelineRow> rows_of(const Timeline& timeline) {
  std::map<std::pair<int, std::string>, std::size_t> index;
  std::vector<TimelineRow> rows;
  for (const Span& span : timeline.spans) {
    const auto [found, added] = index.try_emplace({span.rank, span.row}, rows.size());
    if (added) rows.push_back({span.rank, span.row, {}});
    rows[found->second].spans.push_back(&span);
  }
  for (TimelineRow& row : rows)
    std::stable_sort(row.spans.begin(), row.spans.end(),
                     [](const Span* a, const Span* b) { return a->begin < b->begin; });
  std::sort(rows.begin(), rows.end(), [](const TimelineRow& a, const TimelineRow& b) {
    return a.rank != b.rank ? a.rank < b.rank : sort_key(a.name) < sort_key(b.name);
  });
  return rows;
}

}  // namespace imbrex
