// Names of enumerations, both ways.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include <fmt/ranges.h>

#include "base/check.hpp"
#include "base/text.hpp"

namespace imbrex::base {

template <typename T>
struct Named {
  T value;
  std::string_view name;
};

/// "?" where the table has no such value.
template <typename T, std::size_t N>
std::string_view find_name(const std::array<Named<T>, N>& table, T value) {
  for (const auto& entry : table)
    if (entry.value == value) return entry.name;
  return "?";
}

/// Throws Error(invalid_input) listing the names that exist; `what` says what is looked for.
template <typename T, std::size_t N>
T find_value(const std::array<Named<T>, N>& table, std::string_view name, std::string_view what) {
  std::array<std::string_view, N> known;
  for (std::size_t i = 0; i < N; ++i) {
    if (table[i].name == name) return table[i].value;
    known[i] = table[i].name;
  }
  IMBREX_EXPECTS(false, "'{}' is not {}; it must be one of {}{}", printable(name), what, fmt::join(known, ", "),
                 did_you_mean(name, known));
  return {};
}

}  // namespace imbrex::base
