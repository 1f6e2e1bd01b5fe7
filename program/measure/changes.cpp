#include "program/measure/changes.hpp"

#include <charconv>
#include <string>

#include "base/check.hpp"
#include "plan/json/node.hpp"

namespace imbrex::program {

Knobs with_changes(const Knobs& base, std::string_view changes) {
  nlohmann::json knobs = nlohmann::json::parse(plan::to_json(base));
  for (std::string_view rest = changes; !rest.empty();) {
    const std::string_view change = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), change.size() + 1));
    const std::size_t sign = change.find('=');
    IMBREX_EXPECTS(sign != std::string_view::npos, "'{}' in '{}': it must be KNOB=VALUE", change, changes);
    const std::string name(change.substr(0, sign)), value(change.substr(sign + 1));
    IMBREX_EXPECTS(knobs.contains(name), "'{}' in '{}' is not a knob; a plan file names them", name, changes);
    if (knobs[name].is_boolean()) {
      IMBREX_EXPECTS(value == "true" || value == "false", "'{}' in '{}': it must be true or false", change, changes);
      knobs[name] = value == "true";
    } else if (knobs[name].is_string()) {
      knobs[name] = value;
    } else {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
      IMBREX_EXPECTS(error == std::errc{} && end == value.data() + value.size(), "'{}' in '{}': it must be an integer",
                     change, changes);
      knobs[name] = number;
    }
  }
  return plan::knobs_of(plan::Node(knobs, changes));
}

}  // namespace imbrex::program
