// A test program's main that runs each test in a process of its own, one after another: a test that loses its GPU or
// hangs takes no other with it. With --gtest_filter it runs what that names in this process. GTEST_TOTAL_SHARDS and
// GTEST_SHARD_INDEX name a part, as for GoogleTest's own main.
#include <gtest/gtest.h>

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpu/harness/skips.hpp"

namespace {

using Clock = std::chrono::steady_clock;

// Tests bound their own waits; this is for what waits without CUDA's or Imbrex' knowing.
constexpr auto limit = std::chrono::seconds(100);

// The parts are GoogleTest's. Programs that run one test hear nothing of them.
std::vector<std::string> tests_of_this_part() {
  const auto number = [](const char* name, std::size_t fallback) {
    const char* text = std::getenv(name);
    return text != nullptr ? static_cast<std::size_t>(std::atoi(text)) : fallback;
  };
  const std::size_t parts = number("GTEST_TOTAL_SHARDS", 1), part = number("GTEST_SHARD_INDEX", 0);
  for (const char* name : {"GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"}) unsetenv(name);
  std::vector<std::string> names;
  std::size_t seen = 0;
  const auto& unit = *testing::UnitTest::GetInstance();
  for (int s = 0; s < unit.total_test_suite_count(); ++s) {
    const testing::TestSuite& suite = *unit.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); ++t) {
      const std::string name = std::string(suite.name()) + "." + suite.GetTestInfo(t)->name();
      if (name.find("DISABLED_") == std::string::npos && seen++ % parts == part) names.push_back(name);
    }
  }
  return names;
}

// What went wrong, "" if nothing; counts a test that was skipped. This process has not used CUDA, so its children may.
std::string run(const std::string& test, const std::vector<std::string>& words, std::size_t& skipped) {
  std::cout.flush();
  const pid_t parent = getpid(), child = fork();
  if (child < 0) return "fork failed";
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);
    std::vector<std::string> all = words;
    all.push_back("--gtest_filter=" + test);
    std::vector<char*> pointers;
    for (std::string& word : all) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execv("/proc/self/exe", pointers.data());
    _exit(3);
  }
  const auto begin = Clock::now();
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) break;
    if (ended < 0 && errno != EINTR) return "lost";
    if (Clock::now() - begin > limit) {
      kill(child, SIGKILL);
      waitpid(child, &status, 0);
      return "was killed: it took longer than " + std::to_string(limit.count()) + " s";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  if (WIFSIGNALED(status)) return "ended by signal " + std::to_string(WTERMSIG(status));
  if (WEXITSTATUS(status) == imbrex::test::all_skipped) {
    ++skipped;
    return "";
  }
  return WEXITSTATUS(status) == 0 ? "" : "failed";
}

}  // namespace

int main(int count, char** words) {
  const std::vector<std::string> given(words, words + count);
  testing::InitGoogleTest(&count, words);
  if (testing::GTEST_FLAG(list_tests) || std::string_view(testing::GTEST_FLAG(filter)) != "*")
    return imbrex::test::run_tests();
  if (imbrex::test::lacks_mps()) return imbrex::test::all_skipped;
  const std::vector<std::string> tests = tests_of_this_part();
  std::vector<std::string> wrong;
  std::size_t skipped = 0;
  for (const std::string& test : tests)
    if (const std::string what = run(test, given, skipped); !what.empty()) wrong.push_back(test + " " + what);
  std::cout << "\n"
            << tests.size() << " tests, each in a process of its own; " << skipped << " skipped, " << wrong.size()
            << " went wrong\n";
  for (const std::string& line : wrong) std::cout << "  " << line << "\n";
  if (!wrong.empty()) return 1;
  return skipped == tests.size() ? imbrex::test::all_skipped : 0;
}
