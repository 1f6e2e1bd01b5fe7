// What groups of devices share on the way to other groups; fetching; collectives whose latency grows with their ranks.
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "execute/simulate/levels.hpp"
#include "imbrex/machine.hpp"
#include "machine/rates.hpp"
#include "simulate/plans.hpp"

namespace imbrex::test {
namespace {

constexpr double block_bytes = 1024.0 * 32768 * 2;

// Eight devices, two to a switch, four to a socket.
Machine tree(double of_switch, double of_socket, double latency = 0) {
  Machine machine = ideal_machine();
  machine.devices = 8;
  machine.levels = {{"switch", constant(2), constant(of_switch), constant(latency)},
                    {"socket", constant(4), constant(of_socket), constant(latency)}};
  validate(machine);
  return machine;
}

// Each pair copies a block, all at once.
double copies(const Machine& machine, const std::vector<std::pair<int, int>>& pairs) {
  Plans plans(8);
  for (const auto& [from, to] : pairs) plans.queue(from, Engine::copy).push_back(Plans::copy(from, to, 1024, 32768));
  return simulate(plans.plan, machine).seconds;
}

TEST(Levels, WhoStaysInAGroupSharesNothing) {
  const Machine machine = tree(1e9, 1e9);
  EXPECT_LT(copies(machine, {{0, 1}, {2, 3}, {6, 7}}), 1e-9);
  EXPECT_NEAR(copies(machine, {{0, 2}}), block_bytes / 1e9, 1e-9);
}

TEST(Levels, FlowsThatLeaveAGroupShareItsWay) {
  const Machine machine = tree(4e9, 1e9);
  const double apart = copies(machine, {{0, 2}, {4, 6}}), shared = copies(machine, {{0, 2}, {1, 3}});
  EXPECT_NEAR(apart, block_bytes / 4e9, 1e-9);
  EXPECT_NEAR(shared, 2 * block_bytes / 4e9, 1e-3 * shared);
  // The way in is one as well, and in and out do not share.
  EXPECT_NEAR(copies(machine, {{0, 2}, {4, 3}}), block_bytes / 1e9, 1e-2 * block_bytes / 1e9);
  EXPECT_NEAR(copies(machine, {{0, 2}, {2, 0}}), apart, 1e-9);
}

TEST(Levels, TheNarrowestWayDecides) {
  const std::vector<std::pair<int, int>> four{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  for (const double of_switch : {1e9, 2e9, 8e9})
    for (const double of_socket : {1e9, 4e9, 16e9}) {
      const double expected = std::max(2 * block_bytes / of_switch, 4 * block_bytes / of_socket);
      EXPECT_NEAR(copies(tree(of_switch, of_socket), four), expected, 0.01 * expected) << of_switch << ' ' << of_socket;
    }
}

TEST(Levels, LatencyCountsForEachWay) {
  const Machine machine = tree(1e30, 1e30, 1e-6);
  EXPECT_DOUBLE_EQ(simulate::way_latency(machine, 0, 1), 0);
  EXPECT_DOUBLE_EQ(simulate::way_latency(machine, 0, 2), 2e-6);
  EXPECT_DOUBLE_EQ(simulate::way_latency(machine, 7, 0), 4e-6);
  EXPECT_NEAR(copies(machine, {{0, 1}}), 0, 1e-9);
  EXPECT_NEAR(copies(machine, {{0, 4}}), 4e-6, 1e-9);
}

TEST(Levels, ACollectiveCrossesOnceInARingAndForEachPairInAnAllToAll) {
  const Level socket{"socket", constant(4), constant(1), constant(0)};
  std::vector<int> ranks(8);
  std::iota(ranks.begin(), ranks.end(), 0);
  EXPECT_DOUBLE_EQ(simulate::crossing_bytes(socket, CollectiveKind::all_gather, ranks, 80, 70), 70);
  EXPECT_DOUBLE_EQ(simulate::crossing_bytes(socket, CollectiveKind::all_to_all, ranks, 80, 70), 4 * 4 * 10);
  EXPECT_DOUBLE_EQ(simulate::crossing_bytes(socket, CollectiveKind::all_to_all, {0, 1, 2, 3}, 80, 60), 0);
  EXPECT_DOUBLE_EQ(simulate::crossing_bytes(socket, CollectiveKind::all_gather, {4, 5}, 80, 40), 0);
}

TEST(Levels, ACollectiveIsNoFasterThanItsWays) {
  const Problem problem{Operator::gemm_all_to_all, 1024, 128, 128, 8, Type::bf16};
  Knobs knobs;
  const Plan plan = make_plan(problem, Strategy::sequential, knobs);
  const double free = simulate(plan, tree(1e30, 1e30)).seconds, narrow = simulate(plan, tree(1e30, 1e9)).seconds;
  // A socket sends half of its four ranks' results to the other one.
  EXPECT_NEAR(narrow - free, 4 * 1024.0 * 128 * 2 * 0.5 / 1e9, 1e-9);
}

TEST(Levels, MachinesWithoutThemAreAsBefore) {
  Machine machine = ideal_machine();
  machine.egress_bandwidth = machine.ingress_bandwidth = constant(1e9);
  Machine wide = machine;
  wide.levels = {{"switch", constant(2), constant(1e30), constant(0)}};
  for (const auto& pairs : std::vector<std::vector<std::pair<int, int>>>{{{0, 1}}, {{0, 2}, {1, 2}}, {{0, 4}, {4, 0}}})
    EXPECT_DOUBLE_EQ(copies(machine, pairs), copies(wide, pairs));
}

TEST(Copies, MayFetchAtAnotherRate) {
  Machine machine = ideal_machine();
  machine.copy_bandwidth = constant(4e9);
  Plans fetch(2);
  fetch.queue(1, Engine::copy).push_back(Plans::copy(0, 1, 1024, 32768));
  EXPECT_NEAR(simulate(fetch.plan, machine).seconds, block_bytes / 4e9, 1e-9);
  machine.copy_pull_bandwidth = constant(1e9);
  EXPECT_NEAR(simulate(fetch.plan, machine).seconds, block_bytes / 1e9, 1e-9);
  EXPECT_NEAR(copies(machine, {{0, 1}}), block_bytes / 4e9, 1e-9);
}

TEST(Collectives, TakeLongerWithMoreRanks) {
  Machine machine = ideal_machine();
  machine.all_gather = machine.all_reduce = {{{1000, 1e-5}, {1e9, 1e-2}}, Provenance::unverified, "test"};
  const auto seconds = [&](Curve Machine::*curve, double ranks, double bytes) {
    return machine::collective_seconds(machine, curve, false, ranks, bytes);
  };
  EXPECT_DOUBLE_EQ(seconds(&Machine::all_gather, 2, 1000), seconds(&Machine::all_gather, 512, 1000));
  machine.collective_ranks = constant(8);
  machine.collective_step = constant(1e-6);
  EXPECT_DOUBLE_EQ(seconds(&Machine::all_gather, 8, 1000), 1e-5);
  EXPECT_DOUBLE_EQ(seconds(&Machine::all_gather, 16, 1000), 1.8e-5);
  EXPECT_DOUBLE_EQ(seconds(&Machine::all_gather, 4, 1000), 0.6e-5);
  // A tree of 64 ranks is six steps up and six down.
  EXPECT_DOUBLE_EQ(machine::steps_of(&Machine::all_reduce, 2), 2);
  EXPECT_DOUBLE_EQ(machine::steps_of(&Machine::all_reduce, 64), 12);
  EXPECT_DOUBLE_EQ(seconds(&Machine::all_reduce, 64, 1000), 1.6e-5);
  // Few ranks take no less than their bytes do.
  machine.collective_step = constant(1e-3);
  EXPECT_DOUBLE_EQ(seconds(&Machine::all_gather, 2, 1000), 1e-8);
  for (double ranks = 2; ranks < 1024; ranks *= 2)
    EXPECT_LE(seconds(&Machine::all_reduce, ranks, 5e6), seconds(&Machine::all_reduce, 2 * ranks, 5e6));
}

}  // namespace
}  // namespace imbrex::test
