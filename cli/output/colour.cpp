#include "output/colour.hpp"

#include <unistd.h>

#include "imbrex/environment.hpp"

namespace imbrex::cli {
namespace {

bool shows_colours(int descriptor) {
  if (::isatty(descriptor) != 1) return false;
  for (const EnvironmentVariable& variable : environment_variables()) {
    if (variable.name == "NO_COLOR" && variable.value) return false;
    if (variable.name == "TERM" && variable.value == "dumb") return false;
  }
  return true;
}

std::string in_colour(int descriptor, Colour colour, std::string_view text) {
  if (!shows_colours(descriptor)) return std::string(text);
  const int code = colour == Colour::good ? 32 : colour == Colour::note ? 33 : 31;
  return fmt::format("\033[{}m{}\033[0m", code, text);
}

}  // namespace

std::string coloured(const Program& program, Colour colour, std::string_view text) {
  return in_colour(program.json == "-" ? STDERR_FILENO : STDOUT_FILENO, colour, text);
}

std::string verdict_of(const Program& program, bool right) {
  return coloured(program, right ? Colour::good : Colour::bad, right ? "right" : "WRONG");
}

std::string coloured_error(Colour colour, std::string_view text) { return in_colour(STDERR_FILENO, colour, text); }

}  // namespace imbrex::cli
