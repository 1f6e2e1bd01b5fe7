// Errors that cross the library's boundary: one exception type, three causes.
#pragma once

#include <stdexcept>
#include <string>

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

}  // namespace imbrex
