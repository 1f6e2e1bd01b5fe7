// Checks on arguments and system calls.
#pragma once

#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "imbrex/error.hpp"

/// Throws Error(invalid_input) with a formatted message unless `condition` holds.
#define IMBREX_EXPECTS(condition, ...)                                                       \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      throw ::imbrex::Error(::imbrex::ErrorCode::invalid_input, ::fmt::format(__VA_ARGS__)); \
  } while (false)

/// Evaluates a system call that returns -1 on failure; throws Error(runtime_failure) naming it and errno.
#define IMBREX_SYSTEM(call)                                                                 \
  [&] {                                                                                     \
    const auto imbrex_result = (call);                                                      \
    if (imbrex_result == -1) [[unlikely]]                                                   \
      throw ::imbrex::Error(::imbrex::ErrorCode::runtime_failure,                           \
                            ::fmt::format("{} failed: {}", #call, ::std::strerror(errno))); \
    return imbrex_result;                                                                   \
  }()
