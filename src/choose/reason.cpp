#include "choose/reason.hpp"

#include <algorithm>

namespace imbrex::choose {

void Reason::add(Strategy strategy, double seconds) {
  const auto same =
      std::find_if(expected.begin(), expected.end(), [&](const Expectation& e) { return e.strategy == strategy; });
  if (same == expected.end())
    expected.push_back({strategy, seconds});
  else
    same->seconds = std::min(same->seconds, seconds);
  std::stable_sort(expected.begin(), expected.end(),
                   [](const Expectation& x, const Expectation& y) { return x.seconds < y.seconds; });
}

}  // namespace imbrex::choose
