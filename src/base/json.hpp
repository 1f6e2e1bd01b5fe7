// Parsing JSON strictly: what an object model would hide is refused.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

namespace imbrex::base {

/// The value that `text` holds. Throws Error(invalid_input), whose message begins with `title` and stays short, for
/// what is not JSON, for an object that has a key twice, for nesting of more than 64 levels, and for numbers that no
/// double holds.
nlohmann::json parse_json(std::string_view text, std::string_view title);

}  // namespace imbrex::base
