// What ran when: the common record of measured and simulated runs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace imbrex {

/// One stretch of time on one row. Times are seconds from the run's common start.
struct Span {
  enum class Kind : std::uint8_t { compute, copy, collective, reduction, wait, signal };
  int rank = 0;
  std::string row;   ///< the resource: "sm 3", "copy engine", "worker 0", "egress"
  std::string name;  ///< what ran: "tile rows 0+128 cols 256+128", "wait signal 4 for 3"
  Kind kind = Kind::compute;
  double begin = 0, end = 0;
};

struct Timeline {
  std::string title;   ///< operator, sizes, strategy
  std::string source;  ///< "measured on <machine>" or "simulated on <machine>"
  std::vector<Span> spans;
};

/// What one run took.
struct Report {
  double seconds = 0;  ///< from the rank's entry to its last task's end; simulated: of the slowest rank
  Timeline timeline;  ///< empty unless asked for; simulated: all ranks' spans; measured: this rank's, in seconds of the
                      ///< host's steady clock, which all its processes share
};

/// Trace event JSON for Perfetto (ui.perfetto.dev) or chrome://tracing; one process a rank, one thread a row.
std::string to_perfetto(const Timeline& timeline);

/// A self-contained SVG: one band a resource, grouped by rank, waits visible, a time axis and a legend.
std::string to_svg(const Timeline& timeline);

}  // namespace imbrex
