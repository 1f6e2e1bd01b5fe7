// The wire between hosts, alone, over libfabric's tcp on this machine: what IMBREX_HOST calls hosts.
#include <gtest/gtest.h>

#include <chrono>

#include "runtime/hosts/launch.hpp"

namespace imbrex::shmem::ring {
namespace {

using test::HostsLaunch;
using test::Result;

void expect_well(const std::vector<Result>& results) {
  for (const Result& result : results) EXPECT_EQ(result.code, 0) << result.text;
}

// Whose waits may be long, as machines with more work are slow.
HostsLaunch patient() {
  HostsLaunch launch;
  launch.limit = 100;
  return launch;
}

TEST(FabricWire, DoesEveryVerbInEverySize) {
  expect_well(patient().run("ab", {"verbs"}));
  expect_well(patient().run("aabb", {"verbs"}));
}

TEST(FabricWire, DoesAHundredThousandRandomOperations) {
  expect_well(patient().run("ab", {"random", "35000"}));
  expect_well(patient().run("abb", {"random", "10000"}));
}

TEST(FabricWire, ShowsWordsWholeAndDataBeforeThem) { expect_well(patient().run("abb", {"words", "2000"})); }

TEST(FabricWire, RefusesAProviderThatIsNotThere) {
  HostsLaunch launch;
  auto members = launch.members("ab", {"verbs"});
  for (auto& member : members) member.variables.push_back("IMBREX_FABRIC_PROVIDER=pigeon");
  for (const Result& result : test::spawn(members)) {
    EXPECT_EQ(result.code, 2) << result.text;
    EXPECT_NE(result.text.find("libfabric has no provider 'pigeon'"), std::string::npos) << result.text;
  }
}

TEST(FabricWire, WorksByAnotherProvider) {
  const HostsLaunch launch = patient();
  auto members = launch.members("ab", {"random", "300"});
  for (auto& member : members) member.variables.push_back("IMBREX_FABRIC_PROVIDER=sockets");
  expect_well(test::spawn(members));
}

struct Stop {
  const char* how;
  const char* says;
};

class FabricWireLoses : public testing::TestWithParam<Stop> {};

// PE 2 on host c stops in the middle. All others end within the limit, and name it.
TEST_P(FabricWireLoses, APeerAndSaysSo) {
  HostsLaunch launch;
  launch.limit = 4;
  const auto begin = std::chrono::steady_clock::now();
  const auto results = launch.run("abc", {"stop", GetParam().how});
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_LT(seconds, 14);
  for (int rank = 0; rank < 2; ++rank) {
    const Result& result = results[static_cast<std::size_t>(rank)];
    EXPECT_EQ(result.code, 3) << result.text;
    EXPECT_NE(result.text.find("host c"), std::string::npos) << result.text;
    EXPECT_NE(result.text.find(GetParam().says), std::string::npos) << result.text;
  }
}
INSTANTIATE_TEST_SUITE_P(By, FabricWireLoses,
                         testing::Values(Stop{"killed", "2"}, Stop{"failed", "this PE has had enough"},
                                         Stop{"idle", "PE 2 on host c is not reached by libfabric's tcp;ofi_rxm"}),
                         [](const auto& each) { return each.param.how; });

}  // namespace
}  // namespace imbrex::shmem::ring
