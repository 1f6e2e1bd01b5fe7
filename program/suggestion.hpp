// What a user may have meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace imbrex::program {

/// "; did you mean NAME?" for the name that is nearest to the text, or empty: base::did_you_mean.
std::string did_you_mean(std::string_view text, const std::vector<std::string>& names);

}  // namespace imbrex::program
