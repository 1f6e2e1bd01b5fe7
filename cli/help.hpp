// What --help prints: wrapped to the terminal, short unless all is asked for, or about one operator.
#pragma once

#include <string>

#include "command.hpp"

namespace imbrex::cli {

/// Help of the command that the arguments name, with the options that people need first; `all`: with all of them; where
/// OP names an operator, those that it has a use for. To be called once the arguments were parsed.
std::string help_of(const Program& program, bool all);

}  // namespace imbrex::cli
