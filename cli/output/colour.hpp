// Words in colour, where people read them on a terminal.
#pragma once

#include <string>
#include <string_view>

#include "command.hpp"

namespace imbrex::cli {

enum class Colour : std::uint8_t { good, note, bad };

/// `text` in that colour where standard output, or standard error where that carries the JSON, is a terminal, unless
/// the environment has a NO_COLOR that is not empty, or TERM=dumb; else as it is.
std::string coloured(const Program& program, Colour colour, std::string_view text);

/// "right" or "WRONG", so.
std::string verdict_of(const Program& program, bool right);

/// `text` in that colour for a line on standard error.
std::string coloured_error(Colour colour, std::string_view text);

}  // namespace imbrex::cli
