#include "execute/timeline_rows.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace imbrex::execute {
namespace {

struct RowName {
  std::string stem, rest;  // before its number, and after it
  long number = -1;

  explicit RowName(const std::string& row) : stem(row) {
    const auto digit = [&](std::size_t i) { return i < row.size() && row[i] >= '0' && row[i] <= '9'; };
    for (std::size_t space = row.find(' '); space != std::string::npos; space = row.find(' ', space + 1)) {
      std::size_t end = space + 1;
      while (digit(end) && end - space < 10) ++end;
      if (end == space + 1 || (end < row.size() && row[end] != ' ')) continue;
      stem = row.substr(0, space);
      number = std::stol(row.substr(space + 1, end - space - 1));
      rest = row.substr(end);
      return;
    }
  }
};

// Class, name without its number, number: "sm 10" comes after "sm 9", and links come last.
std::tuple<int, std::string, long, std::string> sort_key(const std::string& row) {
  const RowName name(row);
  const int group = name.stem == "sm" || name.stem == "worker" ? 0
                    : !stem_of_many(row).empty()               ? 1
                    : name.stem == "egress"                    ? 3
                    : name.stem == "ingress"                   ? 4
                                                               : 2;
  return {group, name.stem, name.number, name.rest};
}

}  // namespace

std::string stem_of_many(const std::string& row) {
  std::string stem = RowName(row).stem;
  for (const std::string_view many : {"sm", "worker", "loads", "stores"})
    if (stem == many) return stem;
  return "";
}

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

}  // namespace imbrex::execute
