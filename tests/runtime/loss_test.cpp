// kill -9 of a random rank at a random point: the others end soon, say who was lost, and nothing is left behind.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <set>
#include <thread>
#include <tuple>

#include "imbrex/error.hpp"
#include "runtime/cases.hpp"
#include "runtime/spawn.hpp"

namespace imbrex::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr int rounds = 20;

/// What a world would leave behind if its memory had names; other tests have files of their own there.
std::set<std::string> leftovers() {
  std::set<std::string> names;
  for (const char* folder : {"/dev/shm", "/tmp"})
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (const std::string name = entry.path().filename();
          name.find("imbrex-control") != name.npos || name.find("imbrex-heap") != name.npos)
        names.insert(entry.path());
  return names;
}

/// Words that this process and those forked from it share.
template <typename T>
class Shared {
 public:
  Shared() : data_(mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {}
  ~Shared() { munmap(data_, sizeof(T)); }
  T* operator->() const { return static_cast<T*>(data_); }

 private:
  void* data_;
};

class Loss : public testing::Test {
 protected:
  unsigned seed_ = std::random_device{}();
  testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
  std::mt19937 random_{seed_};
};

TEST_F(Loss, OfAForkedRankIsNamedByAllOthers) {
  struct Seen {
    std::atomic<int> right;
  };
  const auto before = leftovers();
  for (int round = 0; round < rounds; ++round) {
    const int ranks = 2 + static_cast<int>(random_() % 7),
              lost = static_cast<int>(random_() % static_cast<unsigned>(ranks));
    const long delay = static_cast<long>(random_() % 20'000'000);
    const Shared<Seen> seen;
    const auto begin = Clock::now();
    testing::internal::CaptureStderr();
    const int code = run_processes(ranks, {}, [&](World& world) {
      if (world.rank() == lost) kill_self_after(delay);
      const int wrong = work_until_lost(world, lost);
      if (!wrong) ++seen->right;
      return wrong;
    });
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(code, 3) << text;
    EXPECT_EQ(seen->right, ranks - 1) << text;
    EXPECT_NE(text.find("imbrex: rank " + std::to_string(lost) + ": killed by signal 9"), std::string::npos) << text;
    EXPECT_LT(Clock::now() - begin, 5s);
    ASSERT_TRUE(childless());
  }
  EXPECT_EQ(leftovers(), before);
}

class LossOfALaunchedRank : public Loss, public testing::WithParamInterface<const char*> {};

TEST_P(LossOfALaunchedRank, IsNamedByAllOthers) {
  setenv("IMBREX_LOSS_DETECTION", GetParam(), 1);
  for (int round = 0; round < rounds / 2; ++round) {
    const int ranks = 2 + static_cast<int>(random_() % 4);
    const std::string lost = std::to_string(random_() % static_cast<unsigned>(ranks));
    const std::string delay = std::to_string(random_() % 20'000'000);
    const auto begin = Clock::now();
    testing::internal::CaptureStderr();
    // 3 comes from the signal whatever the survivors say; one that was told anything else than the lost rank's number
    // prints it, so the text decides.
    EXPECT_EQ(launch(ranks, {RANK_PROGRAM, "lose", lost, delay}), 3);
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(text, "imbrex: rank " + lost + ": killed by signal 9 (Killed)\n");
    EXPECT_LT(Clock::now() - begin, 5s);
    ASSERT_TRUE(childless());
  }
  unsetenv("IMBREX_LOSS_DETECTION");
}

INSTANTIATE_TEST_SUITE_P(By, LossOfALaunchedRank, testing::Values("auto", "lock"),
                         [](const auto& parameter) { return std::string(parameter.param); });

// A program that closes what it did not open, or replaces it.
class ClosedDescriptors : public Loss, public testing::WithParamInterface<std::tuple<int, const char*>> {
 protected:
  // The launch ends soon, with this code, and says nothing but the text.
  void expect(const std::vector<std::string>& arguments, int code, const std::string& says) {
    const auto begin = Clock::now();
    testing::internal::CaptureStderr();
    std::vector<std::string> words{RANK_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    EXPECT_EQ(launch(std::get<0>(GetParam()), words), code);
    EXPECT_EQ(testing::internal::GetCapturedStderr(), says);
    EXPECT_LT(Clock::now() - begin, 10s);
    ASSERT_TRUE(childless());
  }
  const char* how() const { return std::get<1>(GetParam()); }
};

TEST_P(ClosedDescriptors, DoNotKeepRanksFromLeaving) { expect({"close", how(), "-1"}, 0, ""); }

TEST_P(ClosedDescriptors, DoNotHideALoss) {
  expect({"close", how(), "1"}, 3, "imbrex: rank 1: killed by signal 9 (Killed)\n");
}

TEST_P(ClosedDescriptors, FailAWorldThatGoesByLocks) {
  setenv("IMBREX_LOSS_DETECTION", "lock", 1);
  for (const char* rank : {"0", "1"}) expect({"close-one", how(), rank}, 0, "");
  unsetenv("IMBREX_LOSS_DETECTION");
}

INSTANTIATE_TEST_SUITE_P(How, ClosedDescriptors,
                         testing::Combine(testing::Values(2, 3), testing::Values("close", "over")),
                         [](const auto& parameter) {
                           return std::get<1>(parameter.param) + std::to_string(std::get<0>(parameter.param));
                         });

TEST_F(Loss, WhileTheWorldMeetsEndsIt) {
  for (int round = 0; round < rounds / 2; ++round) {
    const std::string lost = std::to_string(random_() % 3), delay = std::to_string(random_() % 4'000'000);
    const auto begin = Clock::now();
    testing::internal::CaptureStderr();
    EXPECT_EQ(launch(3, {RANK_PROGRAM, "lose-at-start", lost, delay}), 3);
    const std::string text = testing::internal::GetCapturedStderr();
    EXPECT_EQ(text, "imbrex: rank " + lost + ": killed by signal 9 (Killed)\n");  // a survivor prints what is wrong
    EXPECT_LT(Clock::now() - begin, 5s);
    ASSERT_TRUE(childless());
  }
}

/// Runs `parent` in a process of its own, kills that once `ranks` pids are known, and expects them to end too.
template <typename Parent>
void expect_no_orphans(const Parent& parent) {
  struct Pids {
    std::atomic<int> count;
    std::atomic<int> pids[8];
  };
  const Shared<Pids> shared;
  ASSERT_EQ(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // orphans become this process's children
  const pid_t middle = fork();
  if (middle == 0) {
    parent([&] { shared->pids[shared->count++] = getpid(); });
    _exit(0);
  }
  const auto begin = Clock::now();
  while (shared->count < 3 && Clock::now() - begin < 10s) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(shared->count, 3);
  kill(middle, SIGKILL);
  while (!childless() && Clock::now() - begin < 10s) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(childless());
  for (int i = 0; i < shared->count; ++i) EXPECT_EQ(kill(shared->pids[i], 0), -1) << "rank " << i << " lives on";
  prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST(Orphans, OfRunProcessesDoNotSurviveIt) {
  expect_no_orphans([](const auto& announce) {
    run_processes(3, {}, [&](World& world) {
      world.barrier();
      announce();
      while (true) pause();
      return 0;
    });
  });
}

TEST(EarlyFinisher, ThatEndsItsProcessIsNotLost) {
  EXPECT_EQ(run_processes(3, {},
                          [](World& world) {
                            world.barrier();
                            if (world.rank() == 1) return 0;
                            std::this_thread::sleep_for(300ms);
                            world.throw_if_failed();
                            return 0;
                          }),
            0);
}

}  // namespace
}  // namespace imbrex::test
