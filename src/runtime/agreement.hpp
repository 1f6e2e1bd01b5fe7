// How ranks make sure that all of them are asked for the same, and that none of them refuses.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "imbrex/world.hpp"

namespace imbrex::runtime {

/// What a rank is asked for: what kind of thing, and the value of each field. Ranks that are asked for the same add the
/// same fields in the same order.
class Terms {
 public:
  /// `thing` with its article, as messages name it: "an operator".
  explicit Terms(std::string_view thing) { put(thing); }

  /// A value as fmt prints it, which tells it from every other value.
  template <typename T>
  Terms& add(std::string_view field, const T& value) {
    put(field);
    fmt::format_to(std::back_inserter(text_), "{}", value);
    text_ += '\0';
    return *this;
  }

  /// What all ranks learn of this one, and may differ.
  Terms& tell(std::int64_t value) {
    told_ = value;
    return *this;
  }

  /// Thing, field, value, field, value ... each followed by a zero byte.
  const std::string& text() const { return text_; }
  std::int64_t told() const { return told_; }

 private:
  void put(std::string_view part) { text_.append(part) += '\0'; }

  std::string text_;
  std::int64_t told_ = 0;
};

/// Collective, all or none: what each rank told, once `ask` has returned the same terms on every rank. `ask` may
/// prepare what the terms speak of; it calls nothing collective. Where it throws, every rank throws: that rank the same
/// exception, the others an Error of its code that names the first such rank and has its message. Where terms differ,
/// every rank throws one Error(invalid_input), which names the first field that differs, its values, and the ranks.
/// One all_gather of 64 bytes where nothing is wrong, and like one it orders what ranks did before it.
std::vector<std::int64_t> agree(World& world, const std::function<Terms()>& ask);

}  // namespace imbrex::runtime
