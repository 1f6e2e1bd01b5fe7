#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "imbrex/error.hpp"
#include "imbrex/world.hpp"
#include "runtime/spawn.hpp"

namespace imbrex::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

void leave_no_core() {
  const rlimit none{0, 0};
  setrlimit(RLIMIT_CORE, &none);
}

TEST(Launch, CombinesExitCodes) {
  const auto code = [](const std::string& a, const std::string& b, const std::string& c) {
    return launch(3, {RANK_PROGRAM, "exit", a, b, c});
  };
  EXPECT_EQ(code("0", "0", "0"), 0);
  EXPECT_EQ(code("0", "1", "0"), 1);
  EXPECT_EQ(code("1", "2", "0"), 2);
  EXPECT_EQ(code("3", "2", "17"), 3);
  EXPECT_EQ(code("1", "17", "2"), 17);
  testing::internal::CaptureStderr();
  EXPECT_EQ(code("0", "-15", "0"), 3);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "imbrex: rank 1: killed by signal 15 (Terminated)\n");
  EXPECT_TRUE(childless());
}

TEST(Launch, RefusesWhatItCannotStart) {
  for (const auto& command :
       std::vector<std::vector<std::string>>{{"/no/such/program"}, {"no-such-program"}, {"/"}, {""}, {}}) {
    try {
      launch(2, command);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    }
  }
  EXPECT_THROW(launch(0, {"true"}), Error);
  EXPECT_THROW(launch(65, {"true"}), Error);
  EXPECT_TRUE(childless());
}

TEST(Launch, SetsItsVariablesOverInheritedOnes) {
  setenv("IMBREX_RANK", "7", 1);
  EXPECT_EQ(launch(3, {"sh", "-c",
                       "test $IMBREX_WORLD_SIZE = 3 && test $IMBREX_RANK -lt 3 && test ${#IMBREX_RENDEZVOUS} = 32"}),
            0);
  unsetenv("IMBREX_RANK");
}

TEST(Launch, EndsTheOthersWhenOneFails) {
  const auto begin = Clock::now();
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(2, {"sh", "-c", "test $IMBREX_RANK = 0 && exit 1; exec sleep 100"}), 3);
  testing::internal::GetCapturedStderr();
  EXPECT_LT(Clock::now() - begin, 9s);
  EXPECT_TRUE(childless());
}

TEST(Launch, ARankThatThrowsTellsItsPeersWhy) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(launch(2, {RANK_PROGRAM, "throw", "1"}), 3);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "rank 1 failed: the caller's own reason\n");
}

TEST(Launch, LeavesNothingThatItsRanksStarted) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // so that a survivor becomes this process's child
  EXPECT_EQ(launch(2, {"sh", "-c", "sleep 100 & exit 0"}), 0);
  const auto begin = Clock::now();
  while (!childless() && Clock::now() - begin < 5s) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(childless());
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Launch, PassesSignalsOn) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) {
    const auto begin = Clock::now();
    const pid_t pid = fork();
    if (pid == 0) {
      close(STDERR_FILENO);
      leave_no_core();
      _exit(launch(2, {"sleep", "100"}));
    }
    std::this_thread::sleep_for(200ms);
    kill(pid, signal);
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
    EXPECT_LT(Clock::now() - begin, 4s);
  }
}

TEST(Launch, LeavesNothingWhenItIsQuit) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    close(STDERR_FILENO);
    leave_no_core();
    _exit(launch(2, {"sh", "-c", "sleep 100 & exec sleep 100"}));
  }
  std::this_thread::sleep_for(200ms);
  kill(pid, SIGQUIT);
  const auto begin = Clock::now();
  while (!childless() && Clock::now() - begin < 5s) {
    waitpid(-1, nullptr, WNOHANG);
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_TRUE(childless());
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Launch, DoesNotOutliveItsParentProcess) {
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  const pid_t pid = fork();
  if (pid == 0) _exit(launch(2, {"sleep", "100"}));
  std::this_thread::sleep_for(200ms);
  kill(pid, SIGKILL);
  const auto begin = Clock::now();
  while (!childless() && Clock::now() - begin < 5s) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(childless());
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

}  // namespace
}  // namespace imbrex::test
