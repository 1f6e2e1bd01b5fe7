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

/// An SVG of several runs, one above the other on one time axis, so that they compare at a glance. Each stands under
/// its own title, and `title` above all.
std::string to_svg(const std::string& title, const std::vector<Timeline>& runs);

/// Seconds in which a rank computes, in which it communicates, and in which it does both: the last are hidden.
struct Overlap {
  double compute = 0, communication = 0, hidden = 0;
};

/// By the rank's spans: products and sums compute; copies, stores, link traffic and collectives communicate. A moment
/// counts once, however many spans hold it. Waits and signals count as neither.
Overlap overlap_of(const Timeline& timeline, int rank);

}  // namespace imbrex
