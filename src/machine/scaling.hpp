// How a curve says that it was changed with a constant, and was not measured so.
#pragma once

#include <string_view>

#include "imbrex/machine.hpp"

namespace imbrex::machine {

inline constexpr std::string_view scaled_with = "scaled with ";

/// "scaled with links.latency": what a changed curve's source begins with; empty for other curves.
inline std::string_view scaling_of(const Curve& curve) {
  const std::string_view from = curve.from;
  return from.starts_with(scaled_with) ? from.substr(0, from.find(';')) : std::string_view();
}

}  // namespace imbrex::machine
