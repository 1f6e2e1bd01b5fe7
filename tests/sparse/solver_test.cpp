// Random triangular systems over PEs on the CPU, how many messages they take, and lost PEs.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>

#include "apps/sparse/generate.hpp"
#include "imbrex/error.hpp"
#include "sparse/random_solve.hpp"
#include "support/random_plan.hpp"

namespace imbrex::apps::sparse {
namespace {

using test::RandomSolve;

TEST(SparseSolver, TwoHundredRandomSystems) {
  const std::uint64_t seed = test::seed_from_environment();
  constexpr WorldOptions options{.heap_bytes = std::size_t{32} << 20, .wait_limit = 30};
  for (std::uint64_t i = 0; i < 200; ++i) {
    const int pes = 1 + static_cast<int>(i % 8);
    // A chain takes a turn of every PE a row, which is long where they share few cores.
    const RandomSolve subject = test::random_solve(seed + i, pes > 4 ? 100 : 400);
    const auto run = i % 4 == 3 ? run_processes : run_threads;
    const int code = run(pes, options, [&](World& world) {
      const std::string why = test::fault_of(world, subject, Device::cpu);
      if (!why.empty()) std::fprintf(stderr, "PE %d: %s\n", world.rank(), why.c_str());
      return why.empty() ? 0 : 1;
    });
    EXPECT_EQ(code, 0) << subject.text(pes);
  }
}

// A packet for each row and PE that it is cut at, however many entries follow.
TEST(SparseSolver, MessagesAreCutPairs) {
  Matrix matrix{40, 40, {}};
  for (std::uint32_t row = 0; row < 40; ++row)
    for (std::uint32_t col = 0; col <= row; ++col) matrix.entries.push_back({row, col, col == row ? 1.0 : 0.01});
  const Triangular system = triangular_of(matrix, Part::whole, false);
  const Levels levels = levels_of(system);
  EXPECT_EQ(levels.count, 40u);
  const Shares shares = share(system, levels, 4, Sharing::cyclic, 10);
  std::int64_t parts = 0;
  for (int pe = 0; pe < 4; ++pe) {
    const Schedule schedule = schedule_of(system, levels, shares, pe);
    EXPECT_EQ(schedule.messages, 10 + 20 + 30);
    EXPECT_EQ(schedule.cut_rows, 30);
    EXPECT_EQ(schedule.most_slots, 30u);
    for (const Chunk& chunk : schedule.chunks) parts += chunk.own != 0 ? 0 : chunk.tasks;
  }
  EXPECT_EQ(parts, 60);
}

// PE 1 is lost: all others are told within the limit.
TEST(SparseSolver, ALostPeIsNamed) {
  const auto began = std::chrono::steady_clock::now();
  RandomSolve subject{0, triangular_of(generate(Kind::banded, 300, 1), Part::whole, false)};
  subject.sharing = Sharing::cyclic, subject.block = 10;
  // The lost PE's exit code hides the others', which count here instead.
  void* shared = mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  const std::atomic_ref<int> told(*static_cast<int*>(shared));
  const int code = run_processes(3, {.heap_bytes = std::size_t{32} << 20, .wait_limit = 40}, [&](World& world) {
    const test::Analysed analysed(world, subject);
    shmem::Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20});
    Solver<double> solver(heap, analysed.schedule, {});
    solver.set_right(std::vector<double>(analysed.schedule.rows.size(), 1.0));
    if (world.rank() == 1) _exit(0);
    try {
      solver.solve();
    } catch (const Error& error) {
      if (std::string(error.what()).find("rank 1") != std::string::npos) told.fetch_add(1);
      throw;
    }
    return 0;
  });
  EXPECT_EQ(code, 3);
  EXPECT_EQ(told.load(), 2);
  munmap(shared, sizeof(int));
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(30));
}

}  // namespace
}  // namespace imbrex::apps::sparse
