// Every case on every kind of world.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/cases.hpp"
#include "runtime/spawn.hpp"

namespace imbrex::test {
namespace {

struct Kind {
  std::string name;
  int (*run)(const Case& entry);
};

const std::vector<Kind> kinds = {
    {"Processes", [](const Case& c) { return run_processes(c.ranks, c.options, c.body); }},
    {"Threads", [](const Case& c) { return run_threads(c.ranks, c.options, c.body); }},
    {"Launched",
     [](const Case& c) {
       return launch(c.ranks, {RANK_PROGRAM, "case", c.name});
     }},
    {"LaunchedTwice",
     [](const Case& c) {
       return launch(c.ranks, {RANK_PROGRAM, "twice", c.name});
     }},
    {"LaunchedAbreast",
     [](const Case& c) {
       return launch(c.ranks, {RANK_PROGRAM, "abreast", c.name});
     }},
    {"ConnectedThreads", run_connected_threads},
    {"ConnectedThreadsWithLocks",
     [](const Case& c) {
       setenv("IMBREX_LOSS_DETECTION", "lock", 1);
       const int code = launch(1, {RANK_PROGRAM, "threads", c.name});
       unsetenv("IMBREX_LOSS_DETECTION");
       return code;
     }},
    {"LaunchedWithLocks",
     [](const Case& c) {
       setenv("IMBREX_LOSS_DETECTION", "lock", 1);
       const int code = launch(c.ranks, {RANK_PROGRAM, "case", c.name});
       unsetenv("IMBREX_LOSS_DETECTION");
       return code;
     }},
    {"UniqueId",
     [](const Case& c) {
       return launch(c.ranks, {RANK_PROGRAM, "id", to_hex(World::make_unique_id()), c.name});
     }},
};

class Conformance : public testing::TestWithParam<std::tuple<Kind, Case>> {};

TEST_P(Conformance, Holds) {
  const auto& [kind, entry] = GetParam();
  EXPECT_EQ(kind.run(entry), 0);
  EXPECT_TRUE(childless());
}

INSTANTIATE_TEST_SUITE_P(Worlds, Conformance, testing::Combine(testing::ValuesIn(kinds), testing::ValuesIn(cases())),
                         [](const auto& parameter) {
                           return std::get<0>(parameter.param).name + "_" + std::get<1>(parameter.param).name;
                         });

// The harness itself must be able to fail.
TEST(Conformance, ReportsAFault) {
  const auto fault = [](World& world) { return world.rank() == 1 ? 1 : 0; };
  EXPECT_EQ(run_processes(2, {}, fault), 1);
  EXPECT_EQ(run_threads(2, {}, fault), 1);
}

}  // namespace
}  // namespace imbrex::test
