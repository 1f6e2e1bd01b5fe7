// What parsing says of a machine's file.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"

namespace imbrex::test {

/// Why the text is refused, or "accepted".
inline std::string message_of(const std::string& text) {
  try {
    parse_machine(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "accepted";
}

}  // namespace imbrex::test
