// GPU tests' main.
#include "gpu/harness/skips.hpp"

int main(int count, char** words) {
  testing::InitGoogleTest(&count, words);
  return imbrex::test::run_tests();
}
