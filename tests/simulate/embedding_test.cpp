// What the simulator says of embedding exchanges on four H200s follows from the machine's constants: nothing is faster
// than the longest of what it must do, and nothing is slower than one thing after another.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "execute/simulate/hosts.hpp"
#include "simulate/plans.hpp"
#include "simulator/embedding_cases.hpp"

namespace imbrex::bench {
namespace {

struct Speedup {
  double of = 0, bound = 0;
};

// Fused plans over sequential ones.
Speedup speedup_of(const Problem& problem, const Machine& machine) {
  const Parts parts = parts_of(problem, machine);
  const double sequential = seconds_of(problem, Strategy::sequential, machine),
               fused = seconds_of(problem, Strategy::fused, machine);
  fmt::print(
      "{}: lookup {:.0f} us, wire {:.0f}, exchange {:.0f}, bound {:.2f}; sequential {:.0f}, fused {:.0f}: {:.2f}x\n",
      name_of(problem.type), parts.lookup * 1e6, parts.wire * 1e6, parts.exchange * 1e6, parts.bound(),
      sequential * 1e6, fused * 1e6, sequential / fused);
  EXPECT_GE(fused, parts.longest());
  // The last stores may still be on their way to memory while the exchange begins.
  EXPECT_GE(sequential, parts.serial() - parts.stored - parts.launches);
  EXPECT_LE(sequential, parts.serial());
  EXPECT_LE(sequential / fused, parts.bound());
  return {sequential / fused, parts.bound()};
}

TEST(EmbeddingTimes, FusedHidesWhatItMayAndNoMore) {
  const Machine machine = load_machine("4xh200");
  for (const Type type : {Type::fp16, Type::fp32}) {
    const Problem problem = embedding_problem(dlrm_tables(), 65536, 4, type, machine);
    EXPECT_GE(speedup_of(problem, with_exchange(machine, Exchange::nccl_of_four)).of, 1.8) << name_of(type);
    const Speedup ideal = speedup_of(problem, with_exchange(machine, Exchange::at_370));
    EXPECT_GE(ideal.of, 1.7) << name_of(type);
    EXPECT_LE(ideal.bound, 2.3) << name_of(type);
  }
}

TEST(EmbeddingTimes, LongBagsLoseNothing) {
  const Machine machine = with_exchange(load_machine("4xh200"), Exchange::at_370);
  for (const Type type : {Type::fp16, Type::fp32})
    EXPECT_GE(speedup_of(embedding_problem(equal_tables(32, 256, 64), 8192, 4, type, machine), machine).of, 1)
        << name_of(type);
}

constexpr Constant given(double value) { return {value, Provenance::unverified, {}}; }

// Eight ranks on two hosts: one message each to a rank there and back, in one slice or in four.
TEST(Hosts, WhatCrossesTakesTheLinksBetweenThem) {
  Machine machine = load_machine("4xh200");
  machine.devices = 8;
  const Problem problem = embedding_problem(equal_tables(32, 128, 32), 32768, 8, Type::fp16, machine);
  const double inside = seconds_of(problem, Strategy::sequential, machine, 2);
  const double sent = 32768 / 8 * 4 * 4 * 128 * 2;  // rows of a rank x ranks there x its tables, in bytes
  machine.host_devices = given(4);
  machine.host_latency = given(5e-6);
  double last = 0;
  for (const double bandwidth : {1e15, 25e9, 5e9}) {
    machine.host_bandwidth = given(bandwidth);
    const double flat = seconds_of(problem, Strategy::sequential, machine),
                 staged = seconds_of(problem, Strategy::sequential, machine, 2),
                 fused = seconds_of(problem, Strategy::fused, machine, 2);
    for (const double seconds : {flat, staged, fused}) EXPECT_GE(seconds, sent / bandwidth + 5e-6) << bandwidth;
    EXPECT_GE(staged, last);
    EXPECT_LT(fused, staged);
    last = staged;
    if (bandwidth == 1e15) {
      EXPECT_NEAR(staged, inside, 0.5 * inside);
    }
  }
  // Where messages cost, four a rank cost three more than one.
  const auto of_messages = [&](int nodes) {
    machine.host_message = given(0);
    const double without = seconds_of(problem, Strategy::sequential, machine, nodes);
    machine.host_message = given(1e-3);
    return seconds_of(problem, Strategy::sequential, machine, nodes) - without;
  };
  EXPECT_NEAR(of_messages(1), 4e-3, 1e-6);
  EXPECT_NEAR(of_messages(2), 1e-3, 1e-6);
}

// What the rings of a collective send: each matrix crosses between hosts once, by all ranks of a host together.
TEST(Hosts, RingsCrossOnce) {
  Machine machine = load_machine("4xh200");
  machine.devices = 8;
  machine.host_devices = given(4);
  machine.host_bandwidth = given(1e9);
  const auto seconds = [&](CollectiveKind kind, std::vector<int> ranks) {
    const simulate::CollectiveWire wire = simulate::wire_of(machine, kind, ranks, 8e6);
    return simulate::across_seconds(machine, wire, 0);
  };
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::all_gather, all), 1e-3);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::all_reduce, all), 2e-3);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::all_to_all, all), 4e-3);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::reduce_scatter, {1, 5}), 4e-3);
  EXPECT_DOUBLE_EQ(seconds(CollectiveKind::all_gather, {0, 1, 2, 3}), 0);
  EXPECT_DOUBLE_EQ(simulate::wire_of(machine, CollectiveKind::all_to_all, all, 8e6).inside, 3e6);
  EXPECT_DOUBLE_EQ(simulate::wire_of(machine, CollectiveKind::all_reduce, {1, 5}, 8e6).inside, 0);
}

// A peer on another host is reached at its rate and latency by stores and copies, and so are its posts.
TEST(Hosts, StoresAndPostsCross) {
  Machine machine = test::ideal_machine();
  const auto seconds = [&](int target) {
    test::Plans p(4);
    p.queue(0, Engine::copy).push_back(test::Plans::copy(0, target, 4096, 1024, {}, {{target, 0}}));
    p.queue(target, Engine::compute).push_back(test::Plans::signal({{0, 1}}));
    return test::simulate(p.plan, machine).seconds;
  };
  EXPECT_NEAR(seconds(2), 0, 1e-12);
  machine.host_devices = given(2);
  machine.host_bandwidth = given(4096.0 * 1024 * 2 / 1e-3);
  machine.host_latency = given(1e-5);
  EXPECT_NEAR(seconds(1), 0, 1e-12);
  EXPECT_NEAR(seconds(2), 1e-3 + 2e-5, 1e-9);
}

}  // namespace
}  // namespace imbrex::bench
