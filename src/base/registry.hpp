// Descriptors that are found by number, as values of an enumeration, and by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>
#include <utility>

#include "base/check.hpp"
#include "base/narrow.hpp"
#include "base/text.hpp"

namespace imbrex::base {

/// Numbered in the order in which they are added; Key is an enumeration of 8 bits, whose values may have no names
/// there. They stay where they are until the process ends.
template <typename Key, typename Descriptor>
class Registry {
 public:
  /// `article` and `noun` say what a descriptor describes: "an", "operator".
  Registry(std::string_view article, std::string_view noun, std::deque<Descriptor> first)
      : article_(article), noun_(noun), all_(std::move(first)) {}

  /// Throws Error(invalid_input) for one that does not exist.
  const Descriptor& at(Key key) const {
    const auto number = static_cast<std::size_t>(key);
    IMBREX_EXPECTS(number < all_.size(), "{} {} does not exist", noun_, number);
    return all_[number];
  }

  /// Throws Error(invalid_input) if there is one of that name.
  Key add(Descriptor descriptor) {
    for (const Descriptor& other : all_)
      IMBREX_EXPECTS(other.name != descriptor.name, "there is {} {} {} already", article_, noun_, descriptor.name);
    all_.push_back(std::move(descriptor));
    return key_of(all_.size() - 1);
  }

  std::size_t size() const { return all_.size(); }

  /// "?" for one that does not exist.
  std::string_view name_of(Key key) const {
    return static_cast<std::size_t>(key) < all_.size() ? std::string_view(at(key).name) : "?";
  }

  /// Throws Error(invalid_input) listing the names that exist.
  Key find(std::string_view name) const {
    std::vector<std::string_view> known;
    for (std::size_t i = 0; i < all_.size(); ++i) {
      if (all_[i].name == name) return key_of(i);
      known.push_back(all_[i].name);
    }
    IMBREX_EXPECTS(false, "'{}' is not {} {}; it must be one of {}{}", printable(name), article_, noun_,
                   fmt::join(known, ", "), did_you_mean(name, known));
    return {};
  }

 private:
  Key key_of(std::size_t number) const { return static_cast<Key>(narrow<std::uint8_t>(number, noun_)); }

  std::string_view article_, noun_;
  std::deque<Descriptor> all_;  // a deque: descriptors stay where they are
};

}  // namespace imbrex::base
