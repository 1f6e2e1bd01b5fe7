// What --help prints: wrapped to the terminal, short unless all is asked for, or about one operator.
#pragma once

#include <string>

#include "command.hpp"

namespace imbrex::cli {

/// Help of the command that the arguments name, with the options that people need first; `all`: with all of them; where
/// OP names an operator, those that it has a use for. To be called once the arguments were parsed.
std::string help_of(const Program& program, bool all);

/// Columns that help may take: the terminal's, from 50 to 120; 100 where standard output is none.
std::size_t help_width();

/// The text with each line broken at blanks so that it has at most `width` characters, if it has blanks. What a line
/// goes on with is indented by two more than the line; a command of a shell goes on behind a backslash.
std::string wrapped(const std::string& text, std::size_t width);

}  // namespace imbrex::cli
