#include "base/json.hpp"

#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/text.hpp"

namespace imbrex::base {
namespace {

using Json = nlohmann::json;

constexpr std::size_t most_levels = 64;

// Puts the value together as its parts come.
class Reader {
 public:
  explicit Reader(std::string_view title) : title_(title) {}

  Json take() { return std::move(root_); }

  // Names are the library's, and so is what they return: whether to go on.
  bool null() { return put(nullptr); }
  bool boolean(bool value) { return put(value); }
  bool number_integer(std::int64_t value) { return put(value); }
  bool number_unsigned(std::uint64_t value) { return put(value); }
  bool number_float(double value, const std::string&) { return put(value); }
  bool string(std::string& value) { return put(std::move(value)); }
  bool binary(Json::binary_t&) { refuse("it holds binary data"); }
  bool start_object(std::size_t) { return open(Json::object()); }
  bool end_object() { return close(); }
  bool start_array(std::size_t) { return open(Json::array()); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    const auto [place, fresh] = open_.back()->get_ref<Json::object_t&>().try_emplace(name);
    if (!fresh) refuse(fmt::format("the key '{}' comes twice in one object", printable(name)));
    member_ = &place->second;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& error) {
    const std::string rule = error.id == 406 ? "no double holds this number" : "this is not JSON";
    refuse(fmt::format("{}: at byte {}, '{}'", rule, position, printable(token, 40)));
  }

 private:
  [[noreturn]] void refuse(const std::string& rule) const {
    throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", title_, rule));
  }

  template <typename T>
  Json& place(T&& value) {
    if (open_.empty()) return root_ = std::forward<T>(value);
    if (open_.back()->is_object()) return *member_ = std::forward<T>(value);
    auto& list = open_.back()->get_ref<Json::array_t&>();
    return list.emplace_back(std::forward<T>(value));
  }
  template <typename T>
  bool put(T&& value) {
    place(std::forward<T>(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() == most_levels) refuse(fmt::format("it nests deeper than {} levels", most_levels));
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view title_;
  Json root_;
  std::vector<Json*> open_;  // objects and lists that have begun and not ended, the innermost last
  Json* member_ = nullptr;   // the innermost object's member whose key has come
};

}  // namespace

Json parse_json(std::string_view text, std::string_view title) {
  Reader reader(title);
  Json::sax_parse(text, &reader);
  return reader.take();
}

}  // namespace imbrex::base
