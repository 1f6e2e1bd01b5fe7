// The suite of the device API and its litmus tests, where work requests and a NIC of software carry everything.
#include <gtest/gtest.h>

#include <cstdio>

#include "shmem/litmus_runs.hpp"
#include "shmem/mlx5/fixture.hpp"
#include "shmem/suite.hpp"

namespace imbrex::shmem::test {

// calls.cpp and moves.cpp beside this.
std::vector<Case> calls_on_mlx5();
std::vector<Case> moves_on_mlx5();

namespace {

constexpr WorldOptions world_options{.heap_bytes = std::size_t{64} << 20, .wait_limit = 60};
constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{16} << 20};
// Rings go round often, and large moves are several requests.
constexpr mlx5::QueueOptions queue_options{.contexts = 8, .slots = 4, .largest = 8192, .stage_bytes = 1024};

int run(World& world, const std::vector<Case>& cases, const mlx5::NicOptions& options) {
  return mlx5::test::at_site(world, heap_options, queue_options, options, [&](mlx5::test::Site& site) {
    Bench bench(site.heap, nullptr);
    int wrong = 0;
    const std::size_t ran = run_all(bench, cases, 1, [&](const std::string& line) {
      if (++wrong <= 5) std::fprintf(stderr, "%s\n", line.c_str());
    });
    if (ran != cases.size()) return 2;
    return wrong == 0 ? 0 : 1;
  });
}

TEST(ShmemMlx5Suite, Moves) {
  const auto cases = moves_on_mlx5();
  EXPECT_EQ(cases.size(), 1407u);
  EXPECT_EQ(run_processes(3, world_options, [&](World& world) { return run(world, cases, {}); }), 0);
}

TEST(ShmemMlx5Suite, Calls) {
  const auto cases = calls_on_mlx5();
  EXPECT_EQ(run_processes(3, world_options, [&](World& world) { return run(world, cases, mlx5::test::unkind(5)); }), 0);
}

TEST(ShmemMlx5Litmus, Holds) {
  for (int what = 0; what < litmuses; ++what)
    EXPECT_EQ(run_processes(2, world_options,
                            [&](World& world) {
                              return mlx5::test::at_site(
                                  world, heap_options, queue_options, mlx5::test::unkind(7),
                                  [&](mlx5::test::Site& site) {
                                    Bench bench(site.heap, nullptr);
                                    return run_litmus<Mlx5>(bench, static_cast<Litmus>(what), 500, true) == 0 ? 0 : 1;
                                  });
                            }),
              0)
        << litmus_names[what];
}

}  // namespace
}  // namespace imbrex::shmem::test
