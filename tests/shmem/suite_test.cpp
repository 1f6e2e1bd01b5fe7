// The suite on the CPU: PEs as processes and threads, on the transport that there is and on one that reorders.
#include <gtest/gtest.h>

#include <cstdio>

#include "shmem/suite.hpp"

namespace imbrex::shmem::test {
namespace {

constexpr WorldOptions world_options{.heap_bytes = std::size_t{64} << 20, .wait_limit = 60};
constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{16} << 20};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::size_t every = 7;  // they make it slow
#else
constexpr std::size_t every = 1;
#endif

int run(World& world, const std::vector<Case>& cases) {
  Heap heap(world, heap_options);
  Bench bench(heap, nullptr);
  int wrong = 0;
  const std::size_t ran = run_all(bench, cases, every, [&](const std::string& line) {
    if (++wrong <= 5) std::fprintf(stderr, "%s\n", line.c_str());
  });
  if (ran != (cases.size() + every - 1) / every) return 2;
  return wrong == 0 ? 0 : 1;
}

void run_on(const std::vector<Case>& cases, std::initializer_list<int> processes, std::initializer_list<int> threads) {
  for (const int pes : processes)
    EXPECT_EQ(run_processes(pes, world_options, [&](World& world) { return run(world, cases); }), 0) << pes;
  for (const int pes : threads)
    EXPECT_EQ(run_threads(pes, world_options, [&](World& world) { return run(world, cases); }), 0) << pes;
}

TEST(ShmemSuite, HasItsCases) {
  EXPECT_EQ(moves_on_host().size(), 1407u);
  EXPECT_EQ(calls_on_host().size(), 508u);
  EXPECT_EQ(moves_on_host_reordered().size(), moves_on_host().size());
  EXPECT_EQ(calls_on_host_reordered().size(), calls_on_host().size());
}

TEST(ShmemSuite, Moves) { run_on(moves_on_host(), {2, 4}, {1, 5}); }
TEST(ShmemSuite, MovesReordered) { run_on(moves_on_host_reordered(), {3}, {2}); }
TEST(ShmemSuite, Calls) { run_on(calls_on_host(), {2, 5}, {1, 3}); }
TEST(ShmemSuite, CallsReordered) { run_on(calls_on_host_reordered(), {4}, {2}); }

}  // namespace
}  // namespace imbrex::shmem::test
