// Text from outside in messages.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "imbrex/error.hpp"

namespace imbrex::base {

using imbrex::printable;

/// Whether printable shows the text unchanged, however long it is.
bool is_printable(std::string_view text);

/// "; did you mean NAME?" for the name that is nearest to the text: a few letters of it are wrong, or it goes on. Empty
/// where none is near.
std::string did_you_mean(std::string_view text, std::span<const std::string_view> names);

}  // namespace imbrex::base
