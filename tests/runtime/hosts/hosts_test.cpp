// Worlds over hosts that fit together, or do not, and ranks that fail.
#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "imbrex/error.hpp"
#include "runtime/cases.hpp"
#include "runtime/hosts/launch.hpp"
#include "runtime/hosts/tcp.hpp"

namespace imbrex::test {
namespace {

using Clock = std::chrono::steady_clock;

/// Every rank has found what it expected, except one of which nothing is expected.
void expect_well_but(const std::vector<Result>& results, int lost) {
  for (int rank = 0; rank < std::ssize(results); ++rank) {
    const Result& result = results[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(result.code == 0 || rank == lost) << "rank " << rank << ": " << result.text;
  }
  EXPECT_TRUE(childless());
}

void expect_well(const std::vector<Result>& results) { expect_well_but(results, -1); }

/// Every rank ends with the code and a message that has each of the parts.
void expect_refusal(const std::vector<Start>& starts, const std::vector<std::string>& parts, int code = 3) {
  for (const Result& result : spawn(starts)) {
    EXPECT_EQ(result.code, code) << result.text;
    for (const std::string& part : parts) EXPECT_NE(result.text.find(part), std::string::npos) << result.text;
  }
}

TEST(Hosts, EverySizeOverUpToThreeHosts) {
  const std::vector<std::string> spreads = {"a",    "aa",   "ab",    "aab",   "aba",    "abc",    "aaab",
                                            "abba", "abca", "aabbc", "abbbb", "abcabc", "aaaabc", "aabbbb"};
  for (const std::string& hosts : spreads) {
    SCOPED_TRACE(hosts);
    const std::size_t count = std::set<char>(hosts.begin(), hosts.end()).size();
    expect_well(HostsLaunch().run(hosts, {"storm", std::to_string(count), "60"}));
  }
}

TEST(Hosts, AStormOfBarriersAndGathers) { expect_well(HostsLaunch().run("aabbc", {"storm", "3", "2000"})); }

class Holds : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(Holds, OverHosts) {
  const auto& [name, hosts] = GetParam();
  expect_well(HostsLaunch().run(hosts, {"case", name}));
}

TEST_P(Holds, TwiceOverHosts) {
  const auto& [name, hosts] = GetParam();
  expect_well(HostsLaunch().run(hosts, {"twice", name}));
}

TEST_P(Holds, AbreastOverHosts) {
  const auto& [name, hosts] = GetParam();
  expect_well(HostsLaunch().run(hosts, {"abreast", name}));
}

INSTANTIATE_TEST_SUITE_P(Cases, Holds,
                         testing::Values(std::pair{"barrier_orders", "aabb"}, std::pair{"gathers", "abacb"},
                                         std::pair{"gather_limits", "aab"}, std::pair{"gather_meets_barrier", "abb"},
                                         std::pair{"heap_is_symmetric", "aabb"}, std::pair{"heap_fills", "ab"},
                                         std::pair{"early_finisher", "aab"}, std::pair{"failure_reaches_all", "aabc"},
                                         std::pair{"leaver_is_named", "abbb"}, std::pair{"barrier_is_bounded", "aabb"},
                                         std::pair{"many_ranks", "aaaaaaaaaabbbbbbbbbbbcccccccccca"}),
                         [](const auto& parameter) { return std::string(parameter.param.first); });

TEST(Hosts, LocksNoticeLossesToo) {
  HostsLaunch launch;
  auto starts = launch.members("aabb", {"lose", "3", "100000000"});
  for (Start& start : starts) start.variables.push_back("IMBREX_LOSS_DETECTION=lock");
  expect_well_but(spawn(starts), 3);
}

TEST(Hosts, ARankThatIsKilledIsNamed) {
  for (int round = 0; round < 6; ++round) {
    const int lost = round % 4;
    const auto begin = Clock::now();
    const auto results =
        HostsLaunch().run("aabc", {"lose", std::to_string(lost), std::to_string(1000000 * (round * 37 % 50))});
    expect_well_but(results, lost);
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
  }
}

TEST(Hosts, ARankThatIsKilledWhileRanksMeetIsNamed) {
  for (int round = 0; round < 8; ++round) {
    const int lost = round % 4;
    HostsLaunch launch;
    launch.limit = 2;
    const auto results = launch.run("aabc", {"lose-at-start", std::to_string(lost), std::to_string(3000000 * round)});
    expect_well_but(results, lost);
  }
}

TEST(Hosts, ARankThatIsStoppedIsNamedWithinTheLimit) {
  const auto results = HostsLaunch().run("abb", {"stop", "2", "300000000"});
  EXPECT_EQ(results[0].code, 0) << results[0].text;
  // A rank of the same host may have waited for it at a barrier before.
  EXPECT_TRUE(results[1].code == 0 || results[1].text.find("rank") != std::string::npos) << results[1].text;
}

// Connections go with their descriptors.
TEST(Hosts, ARankWhoseProgramClosesDescriptorsSaysSo) {
  for (const char* how : {"close", "over"})
    for (const std::string hosts : {"ab", "aab", "abb"}) {
      const auto begin = Clock::now();
      expect_well(HostsLaunch().run(hosts, {"close-one", how, "1"}));
      EXPECT_LT(Clock::now() - begin, std::chrono::seconds(15));
    }
}

TEST(Hosts, AnExceptionIsToldToAll) {
  for (const int rank : {0, 2, 3}) expect_well(HostsLaunch().run("aabc", {"throw-late", std::to_string(rank)}));
}

TEST(Hosts, ARefusedCallIsToldToThoseThatTakeIt) {
  for (const int rank : {0, 2}) {
    expect_well(HostsLaunch().run("aabc", {"refuse-call", std::to_string(rank)}));
    expect_well(HostsLaunch().run("aabc", {"refuse-call", std::to_string(rank), "late"}));
  }
}

TEST(Hosts, WordsAreStoredOnOtherHostsInOrder) { expect_well(HostsLaunch().run("aabbc", {"put-words", "0"})); }

// Between words, and behind the heap.
TEST(Hosts, WordsBesideTheHeapAreRefused) {
  for (const char* offset : {"4", "1073741824", "18446744073709551608"})
    expect_well(HostsLaunch().run("ab", {"put-words", offset}));
}

TEST(Hosts, WhatReachesPeersMemoryIsRefused) { expect_well(HostsLaunch().run("abb", {"expect-one-host"})); }

TEST(Hosts, SizesDiffer) {
  HostsLaunch launch;
  auto starts = launch.members("aab", {"join", "4096", "10"});
  starts[2].variables[1] = "IMBREX_WORLD_SIZE=5";
  expect_refusal(starts, {"rank 2 (pid ", "on host b) says that the world has 5 ranks, rank 0 says 3"});
}

TEST(Hosts, HeapsDiffer) {
  HostsLaunch launch;
  auto starts = launch.members("ab", {"join", "4096", "10"});
  starts[1].arguments[1] = "8192";
  expect_refusal(starts, {"rank 1 (pid ", "on host b) asks for a symmetric heap of 8192 bytes, rank 0 for 4096"});
}

TEST(Hosts, TwoClaimOneRank) {
  HostsLaunch launch;
  auto starts = launch.members("aabc", {"join", "4096", "10"});
  // Without rank 3, or the world may be complete before the second one comes.
  starts[3] = launch.member("aabc", 2, {"join", "4096", "10"});
  expect_refusal(starts, {"two processes claim rank 2 (pid ", "on host b and pid "});
}

// Some of them come at once: who stands behind the one that is refused is told, too.
TEST(Hosts, ManyClaimOneRank) {
  HostsLaunch launch;
  auto starts = launch.members("abababababab", {"join", "4096", "20"});
  for (std::size_t rank = 3; rank < starts.size(); ++rank)
    starts[rank] = launch.member("abababababab", 2, {"join", "4096", "20"});
  expect_refusal(starts, {"two processes claim rank 2 (pid "});
}

TEST(Hosts, TwoClaimRankZero) {
  HostsLaunch launch;
  auto starts = launch.members("aab", {"join", "4096", "10"});
  starts[1] = launch.member("aab", 0, {"join", "4096", "10"});
  expect_refusal(starts, {"two processes claim rank 0 (pid ", "on host a and pid "});
}

TEST(Hosts, ARankIsMissing) {
  HostsLaunch launch;
  auto starts = launch.members("aabc", {"join", "4096", "1"});
  starts.erase(starts.begin() + 2);
  expect_refusal(starts, {"rank 2 of 4 did not arrive within 1 s of rank 0 on host a"});
}

TEST(Hosts, RankZeroIsMissing) {
  HostsLaunch launch;
  auto starts = launch.members("aab", {"join", "4096", "1"});
  starts.erase(starts.begin());
  const std::string ports = fmt::format("looked for it at 127.0.0.1 ports {} to {} (", launch.port, launch.port + 7);
  expect_refusal(starts, {"rank 0 did not arrive within 1 s of rank ", ports, "refused"});
}

TEST(Hosts, TheSecretDiffers) {
  HostsLaunch launch;
  auto starts = launch.members("ab", {"join", "4096", "2"});
  starts[1].variables[2] = "IMBREX_RENDEZVOUS=another secret than that";
  const auto results = spawn(starts);
  EXPECT_EQ(results[0].code, 3);
  EXPECT_NE(results[0].text.find("rank 1 of 2 did not arrive"), std::string::npos) << results[0].text;
  EXPECT_EQ(results[1].code, 3);
  EXPECT_NE(results[1].text.find("belongs to another world"), std::string::npos) << results[1].text;
}

TEST(Hosts, PortsInUseArePassedOver) {
  HostsLaunch launch;
  std::vector<runtime::FileDescriptor> taken;
  for (int i = 0; i < 2; ++i)
    taken.push_back(
        runtime::listen_tcp(*runtime::Endpoint::parse("127.0.0.1", static_cast<std::uint16_t>(launch.port + i))));
  expect_well(launch.run("aab", {"storm", "2", "30"}));
  for (int i = 2; i < runtime::ports_tried; ++i)
    taken.push_back(
        runtime::listen_tcp(*runtime::Endpoint::parse("127.0.0.1", static_cast<std::uint16_t>(launch.port + i))));
  const auto results = spawn(launch.members("ab", {"join", "4096", "2"}));
  EXPECT_EQ(results[0].code, 3);
  EXPECT_NE(results[0].text.find("rank 0 on host a finds no free port"), std::string::npos) << results[0].text;
  EXPECT_EQ(results[1].code, 3);
}

TEST(Hosts, TwoLaunchesAtOneAddress) {
  HostsLaunch one, two;
  two.port = one.port;
  auto starts = one.members("aab", {"storm", "2", "60"});
  for (Start& start : two.members("abb", {"storm", "2", "60"})) starts.push_back(std::move(start));
  expect_well(spawn(starts));
}

TEST(Hosts, ByTheVariablesOfOtherLaunchers) {
  const HostsLaunch launch;
  const auto run = [&](const auto& variables) {
    std::vector<Start> starts;
    for (int rank = 0; rank < 4; ++rank) {
      starts.push_back({variables(rank), {"storm", "2", "20"}});
      starts.back().variables.push_back(fmt::format("IMBREX_HOST={}", rank < 3 ? "a" : "b"));
      starts.back().variables.push_back("IMBREX_WAIT_LIMIT=20");
      starts.back().variables.push_back("IMBREX_RENDEZVOUS=" + launch.secret);
    }
    expect_well(spawn(starts));
  };
  run([&](int rank) -> std::vector<std::string> {
    return {fmt::format("RANK={}", rank),
            "WORLD_SIZE=4",
            rank < 3 ? "LOCAL_WORLD_SIZE=3" : "LOCAL_WORLD_SIZE=1",
            "MASTER_ADDR=localhost",
            fmt::format("MASTER_PORT={}", launch.port),
            "TORCHELASTIC_RUN_ID=none"};
  });
  run([&](int rank) -> std::vector<std::string> {
    return {fmt::format("SLURM_PROCID={}", rank),
            "SLURM_NTASKS=4",
            "SLURM_JOB_ID=" + launch.secret,
            "SLURM_STEP_ID=0",
            "SLURM_STEP_NUM_NODES=2",
            "SLURM_STEP_NODELIST=127.0.0.[1-2]"};
  });
  run([&](int rank) -> std::vector<std::string> {
    return {fmt::format("OMPI_COMM_WORLD_RANK={}", rank), "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_SIZE=2",
            "PMIX_NAMESPACE=" + launch.secret, fmt::format("IMBREX_ADDRESS=[::1]:{}", launch.port)};
  });
}

// Each stranger on the network has what these say.
TEST(Hosts, WithoutASecretNoRankMeets) {
  const HostsLaunch launch;
  std::vector<Start> starts;
  for (int rank = 0; rank < 2; ++rank)
    starts.push_back(
        {{fmt::format("RANK={}", rank), "WORLD_SIZE=2", "LOCAL_WORLD_SIZE=1", "LOCAL_RANK=0", "MASTER_ADDR=127.0.0.1",
          fmt::format("MASTER_PORT={}", launch.port), "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=0"},
         {"join", "4096", "5"}});
  expect_refusal(starts,
                 {"IMBREX_RENDEZVOUS is not set: the ranks that torchrun has started meet over a network",
                  "set IMBREX_RENDEZVOUS to random text of at least 16 bytes"},
                 2);
}

TEST(Hosts, InterfacesAreNamed) {
  HostsLaunch launch;
  auto starts = launch.members("ab", {"storm", "2", "20"});
  for (Start& start : starts) start.variables.push_back("IMBREX_INTERFACE=lo");
  expect_well(spawn(starts));
  for (Start& start : starts) start.variables.back() = "IMBREX_INTERFACE=nothing7";
  expect_refusal(starts, {"IMBREX_INTERFACE='nothing7': this host has no such interface; it has ", "lo"}, 2);
}

TEST(Hosts, AddressesThatAreNone) {
  for (const auto& [address, why] :
       std::vector<std::pair<std::string, std::string>>{{"here:0", "port '0' is not a number from 1 to 65535"},
                                                        {"here:70000", "port '70000' is not a number"},
                                                        {"here:", "port '' is not a number"},
                                                        {":29500", "names no host"},
                                                        {"[::1]29500", "after ']' comes ':' and a port"},
                                                        {"here:65535", "the port must be at most"}}) {
    HostsLaunch launch;
    auto starts = launch.members("ab", {"join", "4096", "2"});
    for (Start& start : starts) start.variables[3] = "IMBREX_ADDRESS=" + address;
    expect_refusal(starts, {"IMBREX_ADDRESS='" + address + "'", why}, 2);
  }
  HostsLaunch launch;
  auto starts = launch.members("ab", {"join", "4096", "1"});
  starts.erase(starts.begin());
  starts[0].variables[3] = "IMBREX_ADDRESS=no-such-host.invalid:29500";
  expect_refusal(starts, {"no address of host 'no-such-host.invalid' is known"});
}

TEST(Hosts, AUniqueIdMayHoldAnAddress) {
  HostsLaunch launch;
  const UniqueId id = World::make_unique_id(fmt::format("127.0.0.1:{}", launch.port));
  auto starts = launch.members("aab", {"id", to_hex(id), "gather_limits"});
  for (Start& start : starts) start.variables.erase(start.variables.begin() + 3);
  expect_well(spawn(starts));
  EXPECT_THROW(World::make_unique_id("here:0"), Error);
  EXPECT_THROW(World::make_unique_id(std::string(81, 'a')), Error);
}

}  // namespace
}  // namespace imbrex::test
