// Knobs of which a caller gave some, and leaves the others to the choice.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex::plan {

class GivenKnobs {
 public:
  GivenKnobs() = default;  ///< none
  GivenKnobs(const Knobs& all);
  GivenKnobs(const std::optional<Knobs>& all);
  /// Members of `values` that are named, as in a plan file; without names all. Throws Error(invalid_input) for a name
  /// that no knob has, and for names without values.
  GivenKnobs(const std::optional<Knobs>& values, std::span<const std::string> names);

  explicit operator bool() const { return given_ != 0; }  ///< some are
  bool all() const;
  /// Throws Error(invalid_input) for a name that no knob has.
  bool has(std::string_view name) const;
  std::vector<std::string> names() const;  ///< of those that are given

  const Knobs& values() const { return values_; }  ///< those that are not given are default
  std::optional<Knobs> optional() const;           ///< none where none is given

  bool in(const Knobs& knobs) const;  ///< whether `knobs` have the given values
  Knobs over(Knobs base) const;       ///< `base` with the given values

  bool operator==(const GivenKnobs&) const = default;

 private:
  Knobs values_;
  std::uint32_t given_ = 0;  // a bit a knob, in the order of their table
};

}  // namespace imbrex::plan
