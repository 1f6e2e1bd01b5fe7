#include "runtime/control.hpp"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <limits>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "imbrex/error.hpp"
#include "runtime/host_world.hpp"

namespace imbrex::runtime {
namespace {

WorldOptions small() {
  WorldOptions options;
  options.heap_bytes = 4096;
  return options;
}

TEST(FailureRecord, FirstOfManyWins) {
  for (int round = 0; round < 50; ++round) {
    const auto segment = Segment::create(4, small());
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank)
      threads.emplace_back([&, rank] {
        Control control(segment->block(), rank);
        control.record("message of " + std::to_string(rank) + std::string(500, '.'));
      });
    for (std::thread& thread : threads) thread.join();
    Control control(segment->block(), 0);
    ASSERT_TRUE(control.has_failed());
    EXPECT_EQ(control.failure().size(), 12 + 500u);
  }
}

TEST(FailureRecord, TakenOverOnlyFromTheRankThatWasLost) {
  const auto segment = Segment::create(4, small());
  Control control(segment->block(), 1);
  control.set_pid(2, 4711);
  word(segment->block().failure.phase).store(2 | 2 << 8);  // rank 2 died while it wrote
  control.record("something else");
  EXPECT_FALSE(control.has_failed());
  control.record_lost(3);
  EXPECT_FALSE(control.has_failed());
  control.record_lost(2);
  ASSERT_TRUE(control.has_failed());
  EXPECT_EQ(control.failure(), "rank 2 (pid 4711) was lost: it ended without leaving the world");
}

TEST(FailureRecord, CutsLongMessages) {
  const auto segment = Segment::create(1, small());
  Control control(segment->block(), 0);
  control.record(std::string(100000, 'x'));
  EXPECT_EQ(control.failure().size(), sizeof(FailureRecord::message));
}

TEST(HostWorld, AnExceptionThatLeavesItFailsTheWorld) {
  const auto segment = Segment::create(2, small());
  HostWorld other(segment, 1, small(), Kind::threads);
  try {
    HostWorld world(segment, 0, small(), Kind::threads);
    throw std::runtime_error("boom");
  } catch (const std::runtime_error&) {
  }
  try {
    other.throw_if_failed();
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "rank 0 failed: it left the world by an exception");
  }
}

TEST(HostWorld, MessagesNameTheRankOnce) {
  for (const auto& [given, recorded] :
       std::vector<std::pair<std::string, std::string>>{{"rank 1 queue 0 task 3 waits", "rank 1 queue 0 task 3 waits"},
                                                        {"rank 12 is odd", "rank 1 failed: rank 12 is odd"},
                                                        {"no", "rank 1 failed: no"}}) {
    const auto segment = Segment::create(2, small());
    HostWorld world(segment, 1, small(), Kind::threads);
    world.fail(given);
    EXPECT_EQ(world.control().failure(), recorded);
  }
}

TEST(RunThreads, AnErrorBecomesItsCodeAndTheWorstWins) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_threads(3, small(),
                        [](World& world) -> int {
                          if (world.rank() == 1) throw Error(ErrorCode::invalid_input, "bad tile");
                          return world.rank() == 2 ? 1 : 0;
                        }),
            2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "imbrex: rank 1: bad tile\n");
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_threads(2, small(), [](World&) -> int { throw 5; }), 3);
  testing::internal::GetCapturedStderr();
}

TEST(RunThreads, SayThatMemoryHasRunOut) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_threads(1, small(), [](World&) -> int { throw std::bad_alloc(); }), 3);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "imbrex: rank 0: out of memory\n");
}

TEST(RunProcesses, AnErrorBecomesItsCodeAndReachesTheOthers) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_processes(3, small(),
                          [](World& world) -> int {
                            if (world.rank() == 1) throw Error(ErrorCode::invalid_input, "bad tile");
                            world.barrier();
                            return 0;
                          }),
            3);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("imbrex: rank 1: bad tile\n"), std::string::npos) << text;
  EXPECT_NE(text.find("imbrex: rank 0: rank 1 failed: bad tile\n"), std::string::npos) << text;
  EXPECT_NE(text.find("imbrex: rank 2: rank 1 failed: bad tile\n"), std::string::npos) << text;
}

TEST(RunProcesses, WhatIsPrintedToAClosedOutputTouchesNothing) {
  const pid_t pid = fork();
  if (pid == 0) {
    close(STDOUT_FILENO);
    _exit(run_processes(2, small(), [](World& world) {
      for (int round = 0; round < 20; ++round) {
        std::printf("%s\n", std::string(1000, 'x').c_str());
        std::fflush(stdout);
        world.barrier();
      }
      return 0;
    }));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// What waits in a buffer until the rank ends, and what fills the buffer before that.
TEST(RunProcesses, WhatIsPrintedToAFullDeviceIsAnError) {
  const std::pair<std::size_t, std::string> cases[] = {
      {5, "what it printed cannot be written: No space left on device"},
      {std::size_t{1} << 16, "what it printed could not be written to standard output"}};
  for (const auto& [bytes, message] : cases)
    for (const int own_code : {0, 1}) {
      testing::internal::CaptureStderr();
      const int code = run_processes(2, small(), [&, bytes = bytes](World& world) {
        if (world.rank() == 0) return 0;
        const FileDescriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC));
        if (dup2(full.get(), STDOUT_FILENO) == -1) return 4;
        std::printf("%s", std::string(bytes, 'x').c_str());
        return own_code;
      });
      const std::string text = testing::internal::GetCapturedStderr();
      EXPECT_EQ(code, 3) << bytes << ", " << own_code;
      EXPECT_EQ(text, "imbrex: rank 1: " + message + "\n") << bytes;
    }
}

TEST(RunProcesses, WhatARankKnewToBeLostIsAnErrorToo) {
  testing::internal::CaptureStderr();
  const int code = run_processes(1, small(), [](World&) {
    const FileDescriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC)), out(dup(STDOUT_FILENO));
    if (dup2(full.get(), STDOUT_FILENO) == -1) return 4;
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    std::printf("lost");
    return dup2(out.get(), STDOUT_FILENO) == -1 ? 4 : 0;
  });
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "imbrex: rank 0: what it printed could not be written to standard output\n");
  EXPECT_EQ(code, 3);
}

TEST(RunProcesses, AnErrorOfTheCallersOwnOutputIsNoRanks) {
  const pid_t pid = fork();
  if (pid == 0) {
    const FileDescriptor full(open("/dev/full", O_WRONLY | O_CLOEXEC)), out(dup(STDOUT_FILENO));
    std::setvbuf(stdout, nullptr, _IONBF, 0);
    dup2(full.get(), STDOUT_FILENO);
    std::printf("lost");
    dup2(out.get(), STDOUT_FILENO);
    _exit(std::ferror(stdout) ? run_processes(2, small(), [](World&) { return 0; }) : 4);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(FileDescriptor, IsNoneOfTheStandardOnes) {
  const pid_t pid = fork();
  if (pid == 0) {
    for (const int standard : {0, 1, 2}) close(standard);
    const FileDescriptor event(eventfd(0, EFD_CLOEXEC)), file = SharedMemory::create_file("test", 4096);
    // All three are free again.
    const bool right = event.get() > 2 && file.get() > 2 && (fcntl(event.get(), F_GETFD) & FD_CLOEXEC) != 0 &&
                       dup(file.get()) == 0 && dup(file.get()) == 1 && dup(file.get()) == 2;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(RunProcesses, WhatAForkedChildThrowsIsNoFailureOfItsParent) {
  testing::internal::CaptureStderr();
  const int code = run_processes(2, small(), [](World& world) {
    if (world.rank() == 1) {
      const pid_t child = fork();
      if (child == 0) {
        world.fail("the child's own reason");
        throw std::runtime_error("the child's own exception");
      }
      int status = 0;
      waitpid(child, &status, 0);
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 3) return 1;
    }
    world.barrier();
    return 0;
  });
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 0) << text;
  EXPECT_EQ(text, "imbrex: rank 1: the child's own exception\n");
}

TEST(RunProcesses, AForkedChildIsNoRank) {
  const int code = run_processes(2, small(), [](World& world) {
    const pid_t child = fork();
    if (child == 0) {
      int refused = 0;
      try {
        world.barrier();
      } catch (const Error& error) {
        refused += error.code() == ErrorCode::invalid_input;
      }
      try {
        int own = 0, all[2];
        world.all_gather(&own, all, sizeof own);
      } catch (const Error& error) {
        refused += error.code() == ErrorCode::invalid_input;
      }
      _exit(refused);
    }
    int status = 0;
    waitpid(child, &status, 0);
    world.barrier();
    return WIFEXITED(status) && WEXITSTATUS(status) == 2 ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
}

TEST(RunProcesses, ARankThatExitsInsideItsBodyIsLost) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_processes(2, small(),
                          [](World& world) -> int {
                            if (world.rank() == 1) _exit(1);
                            world.barrier();
                            return 0;
                          }),
            3);
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("imbrex: rank 0: rank 1 (pid "), std::string::npos) << text;
}

TEST(Worlds, RefuseWhatTheyCannotBe) {
  const auto nothing = [](World&) { return 0; };
  EXPECT_THROW(run_threads(0, small(), nothing), Error);
  EXPECT_THROW(run_processes(65, small(), nothing), Error);
  for (const double limit : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    WorldOptions options = small();
    options.wait_limit = limit;
    EXPECT_THROW(run_threads(1, options, nothing), Error) << limit;
    options.wait_limit = 1;
    options.entry_limit = limit;
    EXPECT_THROW(run_processes(1, options, nothing), Error) << limit;
  }
}

}  // namespace
}  // namespace imbrex::runtime
