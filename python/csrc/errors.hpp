// Errors of the operators: torch makes a RuntimeError of the text, and Python's front asks for the code.
#pragma once

#include <stdexcept>
#include <string>

#include "imbrex/c.h"
#include "torch_abi.hpp"

namespace imbrex_torch {

/// The calling thread's last error; IMBREX_OK and no text before the first.
imbrex_status& last_code() noexcept;
std::string& last_message() noexcept;

[[noreturn]] inline void fail(imbrex_status code, const std::string& message) {
  last_code() = code;
  last_message() = message;
  throw std::runtime_error(message);
}

[[noreturn]] inline void refuse(const std::string& message) { fail(IMBREX_INVALID_INPUT, message); }

inline void check(imbrex_status status) {
  if (status != IMBREX_OK) fail(status, imbrex_error_message());
}

/// What torch itself fails in is told on standard error by torch.
inline void check_torch(AOTITorchError error) {
  if (error != 0) fail(IMBREX_RUNTIME_FAILURE, "torch could not make or read a tensor");
}

}  // namespace imbrex_torch
