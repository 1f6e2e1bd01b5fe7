// From exceptions to codes: none leaves a function of c.h.
#pragma once

#include "base/check.hpp"
#include "imbrex/c.h"

namespace imbrex::c {

/// The status of the exception that is being handled; its text becomes the thread's.
imbrex_status keep_error() noexcept;

/// Runs `body`; an exception becomes the status.
template <typename Body>
imbrex_status guarded(Body&& body) noexcept {
  try {
    body();
    return IMBREX_OK;
  } catch (...) {
    return keep_error();
  }
}

/// What `body` returns, or `otherwise` where it throws.
template <typename T, typename Body>
T guarded_value(T otherwise, Body&& body) noexcept {
  try {
    return body();
  } catch (...) {
    keep_error();
    return otherwise;
  }
}

/// Throws Error(invalid_input) where an argument is null.
inline void expect_given(const void* argument, const char* name) {
  IMBREX_EXPECTS(argument != nullptr, "{} is null", name);
}

}  // namespace imbrex::c
