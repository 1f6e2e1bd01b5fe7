// The suite of the device API and its litmus tests, where rings and a thread of each PE carry everything.
#include <gtest/gtest.h>

#include <cstdio>

#include "imbrex/device/shmem/ring/mixed.hpp"
#include "shmem/litmus_runs.hpp"
#include "shmem/ring/fixture.hpp"
#include "shmem/suite.hpp"

namespace imbrex::shmem::test {

// calls.cpp and moves.cpp beside this.
std::vector<Case> calls_on_ring();
std::vector<Case> calls_on_mixed_ring();
std::vector<Case> moves_on_mixed_ring();
std::vector<Case> moves_on_ring();
std::vector<Case> moves_on_own_ring();

namespace {

using ring::test::Kindness;

constexpr WorldOptions world_options{.heap_bytes = std::size_t{64} << 20, .wait_limit = 60};
constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{16} << 20};
// Rings go round often.
constexpr ring::RingTrial ring_options{.contexts = 8, .slots = 8, .seed = 3};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t every = 7;  // they make it slow
constexpr std::uint64_t litmus_rounds = 100;
#else
constexpr std::size_t every = 1;
constexpr std::uint64_t litmus_rounds = 1000;
#endif

int run(World& world, const std::vector<Case>& cases, Kindness kindness, std::uint64_t far = 0,
        std::size_t step = every) {
  ring::RingTrial options = ring_options;
  options.far = far;
  return ring::test::at_site(world, heap_options, options, kindness, [&](ring::test::Site& site) {
    Bench bench(site.heap, nullptr);
    int wrong = 0;
    const std::size_t ran = run_all(bench, cases, step, [&](const std::string& line) {
      if (++wrong <= 5) std::fprintf(stderr, "%s\n", line.c_str());
    });
    if (ran != (cases.size() + step - 1) / step) return 2;
    return wrong == 0 ? 0 : 1;
  });
}

TEST(ShmemRingSuite, HasItsCases) {
  EXPECT_EQ(moves_on_ring().size(), moves_on_own_ring().size());
  EXPECT_EQ(moves_on_ring().size(), 1407u);
  EXPECT_EQ(calls_on_ring().size(), 507u);
}

TEST(ShmemRingSuite, MovesOfProcesses) {
  const auto cases = moves_on_ring();
  EXPECT_EQ(run_processes(3, world_options, [&](World& world) { return run(world, cases, Kindness::unkind); }), 0);
}

TEST(ShmemRingSuite, MovesOfThreads) {
  const auto cases = moves_on_own_ring();
  EXPECT_EQ(
      run_threads(2, world_options, [&](World& world) { return run(world, cases, Kindness::kind, 0, 5 * every); }), 0);
}

TEST(ShmemRingSuite, CallsOfProcesses) {
  const auto cases = calls_on_ring();
  EXPECT_EQ(run_processes(3, world_options, [&](World& world) { return run(world, cases, Kindness::unkind); }), 0);
}

TEST(ShmemRingSuite, CallsOfThreads) {
  const auto cases = calls_on_ring();
  EXPECT_EQ(run_threads(2, world_options, [&](World& world) { return run(world, cases, Kindness::kind); }), 0);
}

// PE 1 is on another host, as the others see it.
TEST(ShmemRingSuite, MovesOfNearAndFar) {
  const auto cases = moves_on_mixed_ring();
  EXPECT_EQ(
      run_processes(3, world_options, [&](World& world) { return run(world, cases, Kindness::unkind, 2, 4 * every); }),
      0);
}

TEST(ShmemRingSuite, CallsOfNearAndFar) {
  const auto cases = calls_on_mixed_ring();
  EXPECT_EQ(run_processes(3, world_options, [&](World& world) { return run(world, cases, Kindness::unkind, 2); }), 0);
  EXPECT_EQ(run_threads(2, world_options, [&](World& world) { return run(world, cases, Kindness::kind, 0); }), 0);
}

class ShmemRingLitmus : public testing::TestWithParam<int> {};

template <typename Transport = Ring>
int run_one(Litmus what, bool ordered, int pes = 2, std::uint64_t far = 0) {
  ring::RingTrial options = ring_options;
  options.far = far;
  return run_processes(pes, world_options, [&](World& world) {
    return ring::test::at_site(world, heap_options, options, Kindness::unkind, [&](ring::test::Site& site) {
      Bench bench(site.heap, nullptr);
      const std::uint64_t wrong = run_litmus<Transport>(bench, what, litmus_rounds, ordered);
      world.barrier();
      return wrong == none ? 2 : wrong == 0 ? 0 : 1;
    });
  });
}

TEST_P(ShmemRingLitmus, Holds) { EXPECT_EQ(run_one(static_cast<Litmus>(GetParam()), true), 0); }

TEST_P(ShmemRingLitmus, HoldsOfNearAndFar) {
  EXPECT_EQ(run_one<MixedRing>(static_cast<Litmus>(GetParam()), true, 3, 2), 0);
}

// On a wire that keeps no order, without what orders.
TEST_P(ShmemRingLitmus, CanFail) {
  const auto what = static_cast<Litmus>(GetParam());
  if (what == Litmus::put_signal_set || what == Litmus::put_signal_add)
    GTEST_SKIP() << "their data lies outside of the heap, so that the put waits by itself; shmem_ring_registered_test "
                    "has others";
  int code = 0;
  for (int attempt = 0; attempt < 30 && code == 0; ++attempt) code = run_one(what, false);
  EXPECT_EQ(code, 1);
}

INSTANTIATE_TEST_SUITE_P(All, ShmemRingLitmus, testing::Range(0, litmuses));

}  // namespace
}  // namespace imbrex::shmem::test
