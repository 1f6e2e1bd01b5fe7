#include "runtime/bootstrap/children.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "imbrex/world.hpp"
#include "runtime/spawn.hpp"

namespace imbrex::runtime {
namespace {

using namespace std::chrono_literals;

/// Exit code of a process that ignores SIGCHLD and runs `body`; -SIGALRM if it does not end.
int where_sigchld_is_ignored(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(60);
    signal(SIGCHLD, SIG_IGN);
    const int code = body();
    struct sigaction now {};
    sigaction(SIGCHLD, nullptr, &now);
    _exit(now.sa_handler == SIG_IGN ? code : 99);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(IgnoredChildren, AreSeenToEndByRunProcesses) {
  EXPECT_EQ(where_sigchld_is_ignored([] { return run_processes(2, {}, [](World& world) { return world.rank(); }); }),
            1);
}

TEST(IgnoredChildren, AreSeenToEndByLaunch) {
  EXPECT_EQ(where_sigchld_is_ignored([] { return launch(2, {RANK_PROGRAM, "exit", "0", "17"}); }), 17);
}

TEST(Children, ThatAnotherPartOfTheProgramReapedHaveEnded) {
  Children children;
  for (int rank = 0; rank < 2; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) _exit(rank);
    children.add(pid);
  }
  ASSERT_EQ(waitpid(children.pid(0), nullptr, 0), children.pid(0));
  for (int round = 0; round < 1000 && !children.all_ended(); ++round)
    children.wait(10ms, [](int rank, const Ending& ending) {
      EXPECT_EQ(ending.unknown, rank == 0);
      EXPECT_EQ(ending.code, rank == 0 ? 3 : 1);
      EXPECT_EQ(ending.signal, 0);
    });
  EXPECT_TRUE(children.all_ended());
  children.reap();
  EXPECT_TRUE(test::childless());
}

}  // namespace
}  // namespace imbrex::runtime
