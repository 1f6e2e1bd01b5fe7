// How a program of GPU tests ends: what skips every test must not look as if it had passed.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace imbrex::test {

/// What CTest shows as skipped.
inline constexpr int all_skipped = 77;

/// Whether CUDA's MPS runs where this process's environment says; its default place is not looked at.
inline bool mps_runs() {
  const char* folder = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  std::error_code none;
  return folder != nullptr && std::filesystem::exists(std::filesystem::path(folder) / "control", none);
}

/// Says so where the tests are to run under MPS only (IMBREX_TEST_NEEDS_MPS), and none runs.
inline bool lacks_mps() {
  if (std::getenv("IMBREX_TEST_NEEDS_MPS") == nullptr || mps_runs()) return false;
  std::cout
      << "SKIPPED: ranks as processes at this size need CUDA's MPS, which does not run; scripts/test starts one\n";
  return true;
}

/// Runs the program's tests: 1 if one fails, all_skipped if all of those that were to run were skipped, else 0.
inline int run_tests() {
  if (lacks_mps()) return all_skipped;
  const int code = RUN_ALL_TESTS();
  const auto& unit = *testing::UnitTest::GetInstance();
  const int tests = unit.test_to_run_count();
  return code == 0 && tests > 0 && unit.skipped_test_count() == tests ? all_skipped : code;
}

}  // namespace imbrex::test
