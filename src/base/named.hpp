// Names of enumerations, both ways.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

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
  std::string known;
  for (const auto& entry : table) {
    if (entry.name == name) return entry.value;
    known += known.empty() ? "" : ", ";
    known += entry.name;
  }
  IMBREX_EXPECTS(false, "'{}' is not {}; it must be one of {}", printable(name), what, known);
  return {};
}

}  // namespace imbrex::base
