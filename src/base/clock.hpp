#pragma once

#include <chrono>

namespace imbrex::base {

/// Seconds of the host's steady clock, which all its processes share.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace imbrex::base
