// Checks of what applications are asked for. Errors are the library's.
#pragma once

#include <concepts>
#include <cstddef>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "imbrex/error.hpp"

/// Throws Error(invalid_input) with a formatted message unless `condition` holds. The message is made only then.
#define IMBREX_EXPECTS(condition, ...)                                                       \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      throw ::imbrex::Error(::imbrex::ErrorCode::invalid_input, ::fmt::format(__VA_ARGS__)); \
  } while (false)

namespace imbrex::apps {

/// `value` as a `To`. Throws Error(invalid_input) naming both if `To` does not hold it.
template <std::integral To, std::integral From>
To narrow(From value, std::string_view what) {
  IMBREX_EXPECTS(std::in_range<To>(value), "{} = {}: it must fit in {} bits", what, value, 8 * sizeof(To));
  return static_cast<To>(value);
}

/// A number that is not negative, as a place in a container.
template <std::integral From>
constexpr std::size_t index(From i) {
  return static_cast<std::size_t>(i);
}

}  // namespace imbrex::apps
