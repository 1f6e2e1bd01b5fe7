// Collects the spans of a simulated run; does nothing when no timeline is asked for.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "imbrex/timeline.hpp"

namespace imbrex::simulate {

class Recorder {
 public:
  Recorder(bool enabled, std::size_t ranks) : enabled_(enabled), egress_(ranks), ingress_(ranks) {}

  bool enabled() const { return enabled_; }

  /// `name` is called only if the span is kept.
  template <typename Name>
  void add(std::size_t rank, std::string row, Span::Kind kind, double begin, double end, const Name& name) {
    if (enabled_ && end > begin) spans_.push_back({static_cast<int>(rank), std::move(row), name(), kind, begin, end});
  }

  /// One chunk of a flow on a link. Chunks that follow each other without a gap become one span.
  template <typename Name>
  void add_link(std::size_t rank, bool out, std::uint64_t flow, double begin, double end, const Name& name) {
    if (!enabled_ || end <= begin) return;
    Last& last = out ? egress_[rank] : ingress_[rank];
    if (last.flow == flow && last.span < spans_.size() && begin <= spans_[last.span].end + 1e-12) {
      spans_[last.span].end = end;
      return;
    }
    last = {flow, spans_.size()};
    spans_.push_back({static_cast<int>(rank), out ? "egress" : "ingress", name(), Span::Kind::copy, begin, end});
  }

  std::vector<Span> take() { return std::move(spans_); }

 private:
  struct Last {
    std::uint64_t flow = ~std::uint64_t{0};
    std::size_t span = 0;
  };
  bool enabled_;
  std::vector<Span> spans_;
  std::vector<Last> egress_, ingress_;
};

}  // namespace imbrex::simulate
