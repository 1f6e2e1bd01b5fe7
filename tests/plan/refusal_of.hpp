// Why a problem is none.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "imbrex/error.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::test {

/// What validate says; empty for a problem that it takes.
inline std::string refusal_of(const Problem& problem) {
  try {
    validate(problem);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "";
}

}  // namespace imbrex::test
