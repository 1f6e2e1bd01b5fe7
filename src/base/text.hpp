// Text from outside in messages.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace imbrex::base {

/// `text` for a message, on one line: control characters, and bytes that are no UTF-8, as \x1b; what lies after `most`
/// bytes is left out, which "..." says. A terminal shows it as it stands.
std::string printable(std::string_view text, std::size_t most = 80);

/// Whether printable shows the text unchanged, however long it is.
bool is_printable(std::string_view text);

}  // namespace imbrex::base
