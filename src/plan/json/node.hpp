// Reading JSON strictly: an unknown or missing key, a wrong type or a number outside its type's range is an
// Error(invalid_input) that names its place.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/check.hpp"
#include "base/text.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::plan {

// A value and the way to it, for messages; the way is put together only when something is wrong.
class Node {
 public:
  using Json = nlohmann::json;

  /// The root; `title` begins every message.
  Node(const Json& json, std::string_view title) : Node(json, nullptr, title, 0) {}

  Node operator[](std::string_view key) const {
    const auto place = object().find(key);
    if (place == json_.end()) refuse(fmt::format("the key '{}' is missing", key));
    return {*place, this, key, 0};
  }
  template <typename F>
  void each(F&& f) const {
    for (std::size_t i = 0; i < array().size(); ++i) f(Node(json_[i], this, {}, i));
  }
  Node at(std::size_t i) const { return {array().at(i), this, {}, i}; }
  std::size_t size() const { return array().size(); }

  void only(std::initializer_list<std::string_view> keys) const { only(std::vector<std::string_view>(keys)); }
  template <typename Key>
  void only(const std::vector<Key>& keys) const {
    for (const auto& [key, value] : object().items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        refuse(fmt::format("the key '{}' is not known here", base::printable(key)));
  }

  template <typename T>
  T integer() const {
    if (!json_.is_number_integer()) refuse(fmt::format("{} is not an integer", excerpt()));
    const bool large = json_.is_number_unsigned() &&
                       json_.get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<T>::max());
    const std::int64_t value = large ? 0 : json_.get<std::int64_t>();
    if (large || value < static_cast<std::int64_t>(std::numeric_limits<T>::min()) ||
        value > static_cast<std::int64_t>(std::numeric_limits<T>::max()))
      refuse(fmt::format("{} is out of range", excerpt()));
    return static_cast<T>(value);
  }
  double number() const {
    if (!json_.is_number()) refuse(fmt::format("{} is not a number", excerpt()));
    return json_.get<double>();
  }
  bool boolean() const {
    if (!json_.is_boolean()) refuse(fmt::format("{} is not true or false", excerpt()));
    return json_.get<bool>();
  }
  const std::string& string() const {
    if (!json_.is_string()) refuse(fmt::format("{} is not a string", excerpt()));
    return json_.get_ref<const std::string&>();
  }
  template <typename Parse>
  auto name(Parse&& parse) const {
    try {
      return parse(string());
    } catch (const Error& error) {
      refuse(error.what());
    }
  }

  [[noreturn]] void refuse(const std::string& rule) const {
    throw Error(ErrorCode::invalid_input, fmt::format("{}: {}: {}", title(), way(), rule));
  }

  bool null() const { return json_.is_null(); }
  bool has(std::string_view key) const { return object().contains(key); }

 private:
  const Json& object() const {
    if (!json_.is_object()) refuse(fmt::format("{} is not an object", excerpt()));
    return json_;
  }
  const Json& array() const {
    if (!json_.is_array()) refuse(fmt::format("{} is not a list", excerpt()));
    return json_;
  }
  std::string excerpt() const {
    if (json_.is_structured()) return json_.type_name();
    if (json_.is_string()) return fmt::format("'{}'", base::printable(string(), 40));
    return json_.dump();
  }
  std::string way() const {
    if (parent_ == nullptr) return "the file";
    const std::string above = parent_->parent_ == nullptr ? "" : parent_->way();
    return key_.empty() ? fmt::format("{}[{}]", above, index_)
                        : fmt::format("{}{}{}", above, above.empty() ? "" : ".", key_);
  }

  Node(const Json& json, const Node* parent, std::string_view key, std::size_t index)
      : json_(json), parent_(parent), key_(key), index_(index) {}

  std::string_view title() const { return parent_ == nullptr ? key_ : parent_->title(); }

  const Json& json_;
  const Node* parent_;
  std::string_view key_;  // the root's key is the title
  std::size_t index_;
};

/// The knobs of a plan or a tuning record.
Knobs knobs_of(const Node& n);

/// As knobs_of reads them, on one line.
std::string to_json(const Knobs& knobs);

/// A problem, in the same way. What it says is not yet valid.
Problem problem_of(const Node& n);
std::string to_json(const Problem& problem);

}  // namespace imbrex::plan
