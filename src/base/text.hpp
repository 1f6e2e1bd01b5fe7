// Text from outside in messages.
#pragma once

#include <string_view>

#include "imbrex/error.hpp"

namespace imbrex::base {

using imbrex::printable;

/// Whether printable shows the text unchanged, however long it is.
bool is_printable(std::string_view text);

}  // namespace imbrex::base
