// A program of two tests, for skips_test.py: one is skipped, the other does what it is told.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string_view>

namespace {

TEST(Skips, Always) { GTEST_SKIP(); }

TEST(Skips, AsTold) {
  const char* told = std::getenv("IMBREX_TEST_TOLD");
  ASSERT_NE(told, nullptr);
  if (std::string_view(told) == "skip") GTEST_SKIP();
  EXPECT_STREQ(told, "pass");
}

}  // namespace
