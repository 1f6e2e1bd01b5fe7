// How a program of GPU tests ends: what skips every test must not look as if it had passed.
#pragma once

#include <gtest/gtest.h>

namespace imbrex::test {

/// What CTest shows as skipped.
inline constexpr int all_skipped = 77;

/// Runs the program's tests: 1 if one fails, all_skipped if all of those that were to run were skipped, else 0.
inline int run_tests() {
  const int code = RUN_ALL_TESTS();
  const auto& unit = *testing::UnitTest::GetInstance();
  const int tests = unit.test_to_run_count();
  return code == 0 && tests > 0 && unit.skipped_test_count() == tests ? all_skipped : code;
}

}  // namespace imbrex::test
