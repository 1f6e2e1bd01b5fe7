// Starts programs with variables of the test's choice.
#pragma once

#include <string>
#include <vector>

namespace imbrex::test {

struct Result {
  int code = -1;     // -1: killed by a signal
  std::string text;  // standard error
};

struct Start {
  std::vector<std::string> variables;  // NAME=VALUE, on top of nothing
  std::vector<std::string> arguments;  // of the rank program
  bool unmapped = false;               // in a user namespace of its own, which maps no user
};

/// Starts all at once and waits for them.
std::vector<Result> spawn(const std::vector<Start>& starts);

/// True if this process has no child, running or not reaped.
bool childless();

}  // namespace imbrex::test
