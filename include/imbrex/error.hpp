// Errors that cross the library's boundary: one exception type, three causes.
#pragma once

#include <cstddef>
#include <stdexcept>
#include <string>
#include <string_view>

namespace imbrex {

/// Why a call failed. The values are the exit codes of the command line program.
enum class ErrorCode : int {
  unsound = 1,          ///< a plan that the checker refutes, or a result outside its bound
  invalid_input = 2,    ///< an argument, file or environment variable breaks a stated rule
  runtime_failure = 3,  ///< a wait past its limit, a lost rank, an operating system refusal
};

/// Thrown by every function of the library that can fail. The message names the offending value and
/// the rule it breaks. Never thrown by a destructor.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

/// `text` for a message, on one line: control characters, and bytes that are no UTF-8, as \x1b; what lies after `most`
/// bytes is left out, which "..." says. A terminal shows it as it stands.
std::string printable(std::string_view text, std::size_t most = 80);

}  // namespace imbrex
