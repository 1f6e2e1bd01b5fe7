// Why a plan was chosen, for people.
#pragma once

#include <string>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::choose {

/// The least predicted seconds of a strategy's candidates.
struct Expectation {
  Strategy strategy = Strategy::sequential;
  double seconds = 0;
};

struct Reason {
  std::string basis;                  ///< "measured as the fastest of its size on NVIDIA H200"; empty: it was asked for
  std::vector<Expectation> expected;  ///< what was compared, the fastest first; empty where nothing was predicted

  /// Notes a candidate's predicted seconds, in order.
  void add(Strategy strategy, double seconds);
};

}  // namespace imbrex::choose
