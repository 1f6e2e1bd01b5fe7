// Names of enumerations, by the place of their values.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include <fmt/ranges.h>

#include "apps/common/check.hpp"

namespace imbrex::apps {

/// Throws Error(invalid_input) listing the names that exist; `what` says what is looked for.
template <typename T, std::size_t N>
T value_named(const std::array<std::string_view, N>& names, std::string_view text, std::string_view what) {
  for (std::size_t i = 0; i < N; ++i)
    if (names[i] == text) return static_cast<T>(i);
  IMBREX_EXPECTS(false, "'{}' is not {}; it must be one of {}", printable(text), what, fmt::join(names, ", "));
  return {};
}

}  // namespace imbrex::apps
