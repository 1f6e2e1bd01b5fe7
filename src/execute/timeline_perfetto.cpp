// Trace event JSON (the format of chrome://tracing, read by ui.perfetto.dev).
#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/narrow.hpp"
#include "execute/timeline_rows.hpp"
#include "imbrex/timeline.hpp"

namespace imbrex {
namespace {

// Names may come from files, so they are escaped, and what is not UTF-8 is replaced.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Microseconds; JSON has no infinity.
std::string microseconds(double seconds) { return fmt::format("{:.4f}", std::isfinite(seconds) ? seconds * 1e6 : 0.0); }

}  // namespace

std::string to_perfetto(const Timeline& timeline) {
  std::string out =
      fmt::format("{{\"displayTimeUnit\":\"ns\",\"otherData\":{{\"title\":{},\"source\":{}}},\n\"traceEvents\":[",
                  quoted(timeline.title), quoted(timeline.source));
  bool first = true;
  const auto add = [&](const std::string& event) {
    out += first ? "\n" : ",\n";
    out += event;
    first = false;
  };
  std::map<std::pair<int, std::string>, int> threads;
  for (const execute::TimelineRow& row : execute::rows_of(timeline)) {
    const int thread = base::narrow<int>(threads.size() + 1, "rows of the timeline");
    if (threads.empty() || threads.rbegin()->first.first != row.rank)
      add(fmt::format(R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"rank {0}"}}}})", row.rank));
    threads[{row.rank, row.name}] = thread;
    add(fmt::format(R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":{}}}}})", row.rank, thread,
                    quoted(row.name)));
    add(fmt::format(R"({{"ph":"M","name":"thread_sort_index","pid":{},"tid":{},"args":{{"sort_index":{}}}}})", row.rank,
                    thread, thread));
  }
  for (const Span& span : timeline.spans)
    add(fmt::format(R"({{"ph":"X","pid":{},"tid":{},"ts":{},"dur":{},"cat":"{}","name":{}}})", span.rank,
                    threads[{span.rank, span.row}], microseconds(span.begin),
                    microseconds(std::max(0.0, span.end - span.begin)), execute::name_of(span.kind),
                    quoted(span.name)));
  return out + "\n]}\n";
}

}  // namespace imbrex
