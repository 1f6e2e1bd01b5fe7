// How much of a rank's communication is hidden behind its computation.
#include <algorithm>
#include <utility>
#include <vector>

#include "imbrex/timeline.hpp"

namespace imbrex {
namespace {

using Stretches = std::vector<std::pair<double, double>>;

// In order, without overlaps.
Stretches joined(Stretches stretches) {
  std::sort(stretches.begin(), stretches.end());
  Stretches result;
  for (const auto& [begin, end] : stretches)
    if (!result.empty() && begin <= result.back().second)
      result.back().second = std::max(result.back().second, end);
    else
      result.emplace_back(begin, end);
  return result;
}

double length(const Stretches& stretches) {
  double sum = 0;
  for (const auto& [begin, end] : stretches) sum += end - begin;
  return sum;
}

double common(const Stretches& x, const Stretches& y) {
  double sum = 0;
  for (std::size_t i = 0, j = 0; i < x.size() && j < y.size();) {
    sum += std::max(0.0, std::min(x[i].second, y[j].second) - std::max(x[i].first, y[j].first));
    ++(x[i].second < y[j].second ? i : j);
  }
  return sum;
}

}  // namespace

Overlap overlap_of(const Timeline& timeline, int rank) {
  Stretches computes, communicates;
  for (const Span& span : timeline.spans) {
    if (span.rank != rank || !(span.end > span.begin)) continue;
    if (span.kind == Span::Kind::compute || span.kind == Span::Kind::reduction)
      computes.emplace_back(span.begin, span.end);
    else if (span.kind == Span::Kind::copy || span.kind == Span::Kind::collective)
      communicates.emplace_back(span.begin, span.end);
  }
  computes = joined(std::move(computes));
  communicates = joined(std::move(communicates));
  return {length(computes), length(communicates), common(computes, communicates)};
}

}  // namespace imbrex
