// Ranks that come late to what the others wait in: how long these wait, and what they say.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "imbrex/error.hpp"
#include "runtime/bootstrap/bootstrap.hpp"
#include "runtime/hosts/launch.hpp"
#include "runtime/late.hpp"
#include "runtime/spawn.hpp"

namespace imbrex::test {
namespace {

using runtime::BoundedWait, runtime::WaitLimits;
using enum BoundedWait::Verdict;
using Clock = std::chrono::steady_clock;

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

constexpr auto yes = [] { return true; };
constexpr auto no = [] { return false; };

TEST(BoundedWait, OfALateRankLastsUntilTheEntryLimit) {
  BoundedWait wait({32, 600}, 100);
  const auto never = [] { return ADD_FAILURE() << "it is too early to look", true; };
  EXPECT_EQ(wait.judge(102, never), going_on);  // a sixteenth of the wait limit
  EXPECT_EQ(wait.judge(103, yes), going_on);
  EXPECT_EQ(wait.judge(132, yes), going_on);
  EXPECT_EQ(wait.judge(133, yes), tell_of_late);
  EXPECT_EQ(wait.judge(134, yes), going_on);  // once
  EXPECT_EQ(wait.judge(700, yes), going_on);
  EXPECT_EQ(wait.judge(701, yes), late_rank);
}

TEST(BoundedWait, BeginsAnewOnceAllHaveCome) {
  BoundedWait wait({32, 600}, 100);
  EXPECT_EQ(wait.judge(500, yes), tell_of_late);
  EXPECT_EQ(wait.judge(510, no), going_on);
  // What has come stays there: it does not look again.
  EXPECT_EQ(wait.judge(542, yes), going_on);
  EXPECT_EQ(wait.judge(543, yes), lost);
}

TEST(BoundedWait, EndsAfterTheWaitLimitWhereNoRankIsLate) {
  BoundedWait wait({32, 600}, 100);
  EXPECT_EQ(wait.judge(103, no), going_on);
  EXPECT_EQ(wait.judge(135, no), going_on);
  EXPECT_EQ(wait.judge(136, no), lost);
}

TEST(BoundedWait, HasOneLimitWhereBothAreTheSame) {
  BoundedWait wait(WaitLimits(32), 100);
  const auto never = [] { return ADD_FAILURE() << "no wait looks", true; };
  EXPECT_EQ(wait.judge(132, never), going_on);
  EXPECT_EQ(wait.judge(133, never), lost);
}

TEST(BoundedWait, MayWaitLessForRanksThanForSignals) {
  BoundedWait late({32, 8}, 100), early({32, 8}, 100);
  EXPECT_EQ(late.judge(108, yes), going_on);
  EXPECT_EQ(late.judge(109, yes), late_rank);
  EXPECT_EQ(early.judge(101, no), going_on);
  EXPECT_EQ(early.judge(133, no), going_on);
  EXPECT_EQ(early.judge(134, no), lost);
}

TEST(Limits, ThatAreChosenHoldForBoth) {
  const auto limits = [](const std::vector<std::string>& variables, const char* wait, const char* entry) {
    return spawn({{variables, {"limits", wait, entry}}}).front().text;
  };
  EXPECT_EQ(limits({}, "0", "0"), "wait 30 entry 600\n");
  EXPECT_EQ(limits({"IMBREX_WAIT_LIMIT=7"}, "0", "0"), "wait 7 entry 7\n");
  EXPECT_EQ(limits({}, "3", "0"), "wait 3 entry 3\n");
  EXPECT_EQ(limits({"IMBREX_WAIT_LIMIT=7"}, "3", "0"), "wait 3 entry 3\n");
  EXPECT_EQ(limits({}, "0", "9"), "wait 30 entry 9\n");
  EXPECT_EQ(limits({"IMBREX_WAIT_LIMIT=7"}, "0", "9"), "wait 7 entry 9\n");
  EXPECT_EQ(limits({}, "-1", "0"),
            "wait limit of -1 s: it must be more than 0 and at most 1000000000 s, or 0 for the "
            "usual one\n");
  EXPECT_EQ(limits({}, "0", "nan"),
            "entry limit of nan s: it must be more than 0 and at most 1000000000 s, or 0 for "
            "the usual one\n");
}

std::vector<Start> late_ranks(const std::vector<std::vector<std::string>>& variables, const char* wait,
                              const char* entry, const char* delay) {
  std::vector<Start> starts;
  for (std::size_t rank = 0; rank < variables.size(); ++rank)
    starts.push_back(
        {variables[rank], {"late", wait, entry, delay, rank + 1 == variables.size() ? "last" : "in time"}});
  return starts;
}

std::vector<std::vector<std::string>> on_one_host(int ranks) {
  const std::string id = runtime::random_id();
  std::vector<std::vector<std::string>> variables;
  for (int rank = 0; rank < ranks; ++rank)
    variables.push_back(
        {fmt::format("IMBREX_RANK={}", rank), fmt::format("IMBREX_WORLD_SIZE={}", ranks), "IMBREX_RENDEZVOUS=" + id});
  return variables;
}

std::vector<std::vector<std::string>> over_hosts(const std::string& hosts) {
  std::vector<std::vector<std::string>> variables;
  for (const Start& start : HostsLaunch().members(hosts, {})) {
    variables.push_back(start.variables);
    std::erase_if(variables.back(), [](const std::string& v) { return v.starts_with("IMBREX_WAIT_LIMIT"); });
  }
  return variables;
}

// All of them at once: what they do is wait.
class LateRanks : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // What each of these comes to is one of `results`, in this order.
    const std::vector<std::vector<Start>> worlds = {
        late_ranks(on_one_host(3), "1", "60", "3"), late_ranks(over_hosts("abb"), "2", "60", "5"),
        late_ranks(on_one_host(2), "0.5", "2", "6"), late_ranks(over_hosts("ab"), "0.5", "2", "6")};
    std::vector<Start> starts;
    for (const auto& world : worlds) starts.insert(starts.end(), world.begin(), world.end());
    const std::vector<Result> all = spawn(starts);
    auto next = all.begin();
    for (const auto& world : worlds) {
      const auto first = std::exchange(next, next + std::ssize(world));
      results.emplace_back(first, next);
    }
  }
  static void TearDownTestSuite() { results.clear(); }

  static inline std::vector<std::vector<Result>> results;
};

TEST_F(LateRanks, OfAWorldAreWaitedForAndNamedOnce) {
  const std::vector<Result>& world = results[0];
  for (const Result& result : world) EXPECT_EQ(result.code, 0) << result.text;
  // Rank 1 meets rank 0, which waits for all.
  EXPECT_EQ(count(world[0].text, "imbrex: rank 0: rank 2 has not come to this world; waiting up to 60 s\n"), 1)
      << world[0].text;
  for (const int rank : {0, 1}) {
    const std::string& text = world[static_cast<std::size_t>(rank)].text;
    EXPECT_EQ(count(text, fmt::format("imbrex: rank {}: rank 2 has not come to barrier 3; waiting up to 60 s\n", rank)),
              1)
        << text;
  }
}

TEST_F(LateRanks, OfSeveralHostsAreWaitedForAndNamedOnce) {
  const std::vector<Result>& world = results[1];
  for (const Result& result : world) EXPECT_EQ(result.code, 0) << result.text;
  EXPECT_EQ(count(world[0].text, "imbrex: rank 0: rank 2 has not come to this world; waiting up to 60 s\n"), 1)
      << world[0].text;
  for (const int rank : {0, 1}) {
    const std::string& text = world[static_cast<std::size_t>(rank)].text;
    EXPECT_EQ(count(text, fmt::format("imbrex: rank {}: rank 2 (host b) has not come to barrier 3; waiting", rank)), 1)
        << text;
  }
}

TEST_F(LateRanks, AreNotWaitedForLongerThanTheEntryLimit) {
  for (const auto& world : {results[2], results[3]}) {
    EXPECT_NE(world[0].code, 0);
    EXPECT_EQ(count(world[0].text, "rank 1 has not come to this world; waiting up to 2 s\n"), 1) << world[0].text;
    EXPECT_EQ(count(world[0].text, "did not arrive within 2 s of rank 0"), 1) << world[0].text;
  }
}

TEST_F(LateRanks, ThatDieKeepNoRankWaiting) {
  testing::internal::CaptureStderr();
  const auto begin = Clock::now();
  const int code = run_processes(3, {.heap_bytes = 4096, .wait_limit = 0.5, .entry_limit = 300}, [](World& world) {
    world.barrier();
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::seconds(2));
      _exit(9);
    }
    world.barrier();
    return 0;
  });
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(code, 3);
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(30));
  EXPECT_EQ(count(said, "rank 1 has not come to barrier 2; waiting up to 300 s\n"), 2) << said;
  EXPECT_GE(count(said, ") was lost: "), 2) << said;
}

}  // namespace
}  // namespace imbrex::test
