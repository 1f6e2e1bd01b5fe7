// Libraries that are missing, or lack a function, are named.
#include "runtime/libraries/shared_library.hpp"

#include <gtest/gtest.h>

namespace imbrex::runtime {
namespace {

template <typename F>
std::string failure(F&& f) {
  try {
    f();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::runtime_failure);
    return error.what();
  }
  return "";
}

TEST(SharedLibrary, FindsFunctionsAndNamesWhatIsMissing) {
  EXPECT_NE(failure([] { SharedLibrary("libimbrex-none.so.1"); }).find("libimbrex-none.so.1 cannot be loaded"),
            std::string::npos);
  const SharedLibrary library("libm.so.6");
  double (*cosine)(double) = nullptr;
  library.find(cosine, "cos");
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0), 1);
  EXPECT_EQ(failure([&] { library.find(cosine, "imbrex_none"); }), "libm.so.6 has no imbrex_none: it is too old");
  library.find_optional(cosine, "imbrex_none");
  EXPECT_EQ(cosine, nullptr);
}

}  // namespace
}  // namespace imbrex::runtime
