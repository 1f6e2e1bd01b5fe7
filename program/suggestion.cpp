#include "program/suggestion.hpp"

#include "base/text.hpp"

namespace imbrex::program {

std::string did_you_mean(std::string_view text, const std::vector<std::string>& names) {
  return base::did_you_mean(text, std::vector<std::string_view>(names.begin(), names.end()));
}

}  // namespace imbrex::program
