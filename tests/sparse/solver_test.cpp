// Random triangular systems over PEs against a serial solution, bit by bit over ways and repeats, and lost PEs.
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <limits>

#include "imbrex/error.hpp"
#include "jobs/sparse/residual.hpp"
#include "jobs/sparse/solver.hpp"
#include "sparse/serial.hpp"
#include "support/random_plan.hpp"

namespace imbrex::jobs::sparse {
namespace {

struct Subject {
  std::uint64_t seed;
  Triangular system;
  std::int64_t columns;
  Sharing sharing;
  std::int64_t block;
  std::uint32_t workers;
  bool exact, single;

  std::string text(int pes) const {
    return fmt::format(
        "seed {}: {} rows, {} entries, {} right-hand sides, {} PEs, {}, blocks of {}, {} workers, {}, {}", seed,
        system.rows, system.entries(), columns, pes, name_of(sharing), block, workers,
        system.backwards ? "backwards" : "forwards", single ? "fp32" : "fp64");
  }
};

Subject random_subject(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const bool exact = random() % 4 == 0;
  const Matrix matrix = test::random_triangular(random, 400, exact);
  Subject subject{seed, triangular_of(matrix, Part::whole, random() % 2 == 0), 1, Sharing::contiguous, 0, 1, exact,
                  false};
  if (random() % 3 == 0) subject.columns = static_cast<std::int64_t>(2 + random() % 6);
  if (random() % 2 == 0)
    subject.sharing = Sharing::cyclic, subject.block = static_cast<std::int64_t>(1 + random() % 20);
  subject.workers = static_cast<std::uint32_t>(1 + random() % 3);
  subject.single = random() % 2 == 0;
  return subject;
}

template <typename T>
class Pe {
 public:
  Pe(World& world, const Subject& subject)
      : world_(world),
        subject_(subject),
        levels_(levels_of(subject.system)),
        shares_(share(subject.system, levels_, world.size(), subject.sharing, subject.block)),
        schedule_(schedule_of(subject.system, levels_, shares_, world.rank())) {}

  // The solution of `epoch`, by every PE.
  std::vector<T> right(std::uint64_t epoch) const {
    std::mt19937_64 random(subject_.seed * 1000 + epoch);
    std::vector<T> values(static_cast<std::size_t>(subject_.system.rows * subject_.columns));
    for (T& value : values) value = static_cast<T>(static_cast<int>(random() % 17) - 8);
    return values;
  }

  // Empty if all is well.
  std::string run() {
    shmem::Heap heap(world_, {.device = Device::cpu,
                              .bytes = 2 * Solver<T>::heap_bytes(schedule_, subject_.columns) + (1 << 16),
                              .pauses = subject_.seed % 3 == 0 ? subject_.seed : 0});
    SolverOptions options{Way::in_kernel, subject_.columns, subject_.workers};
    Solver<T> in_kernel(heap, schedule_, options);
    options.way = Way::kernel_boundaries;
    Solver<T> by_level(heap, schedule_, options);
    for (const std::uint64_t epoch : {1, 2, 3, 4, 5}) {
      const std::vector<T> all = right(epoch);
      const auto columns = static_cast<std::size_t>(subject_.columns);
      std::vector<T> own;
      for (const std::uint32_t row : schedule_.rows)
        own.insert(own.end(), all.begin() + static_cast<std::ptrdiff_t>(row * columns),
                   all.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns));
      in_kernel.set_right(own);
      in_kernel.solve();
      if (epoch % 2 == 0) continue;  // nobody waits for anybody between these solves
      by_level.set_right(own);
      by_level.solve();
      world_.barrier();
      const auto first = gathered(in_kernel), second = gathered(by_level);
      world_.barrier();
      if (first != second) return fmt::format("solve {}: the ways differ", epoch);
      const std::string why = judge(all, first);
      if (!why.empty()) return fmt::format("solve {}: {}", epoch, why);
    }
    return {};
  }

 private:
  std::vector<T> gathered(Solver<T>& solver) const {
    std::vector<T> all(static_cast<std::size_t>(subject_.system.rows * subject_.columns));
    for (int pe = 0; pe < world_.size(); ++pe) {
      std::vector<std::size_t> rows;
      for (std::size_t row = 0; row < shares_.owner.size(); ++row)
        if (shares_.owner[row] == pe) rows.push_back(row);
      const std::vector<T> part = solver.result(pe, rows.size());
      const auto columns = static_cast<std::size_t>(subject_.columns);
      for (std::size_t i = 0; i < part.size(); ++i) all[rows[i / columns] * columns + i % columns] = part[i];
    }
    return all;
  }

  std::string judge(const std::vector<T>& right, const std::vector<T>& found) const {
    const Residual residual = worst_residual(subject_.system, right, found, subject_.columns);
    if (residual.over_bound > 1)
      return fmt::format("row {}, column {}: a residual of {}, which is {} of its bound", residual.row, residual.column,
                         residual.value, residual.over_bound);
    Triangular rounded = subject_.system;
    for (auto* values : {&rounded.value, &rounded.diagonal})
      for (double& value : *values) value = static_cast<T>(value);
    for (std::int64_t column = 0; column < subject_.columns; ++column) {
      std::vector<double> b, x;
      for (std::int64_t row = 0; row < rounded.rows; ++row) {
        const auto at = static_cast<std::size_t>(row * subject_.columns + column);
        b.push_back(right[at]), x.push_back(found[at]);
      }
      const test::Serial serial = test::solve_serially(rounded, b);
      const auto distance = serial.distance(x, std::numeric_limits<T>::epsilon() / 2);
      for (std::size_t row = 0; row < x.size(); ++row) {
        const long double off = std::abs(serial.solution[row] - static_cast<long double>(x[row]));
        if (subject_.exact ? off != 0 : !(off <= distance[row]))
          return fmt::format("place {}, column {}: {}, and serially {}", row, column, x[row],
                             static_cast<double>(serial.solution[row]));
      }
    }
    return {};
  }

  World& world_;
  const Subject& subject_;
  Levels levels_;
  Shares shares_;
  Schedule schedule_;
};

int solve_on(World& world, const Subject& subject) {
  const std::string why = subject.single ? Pe<float>(world, subject).run() : Pe<double>(world, subject).run();
  if (!why.empty())
    std::fprintf(stderr, "%s: PE %d: %s\n", subject.text(world.size()).c_str(), world.rank(), why.c_str());
  return why.empty() ? 0 : 1;
}

constexpr WorldOptions options{.heap_bytes = std::size_t{32} << 20, .wait_limit = 30};

TEST(SparseSolver, TwoHundredRandomSystems) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < 200; ++i) {
    const Subject subject = random_subject(seed + i);
    const int pes = 1 + static_cast<int>(i % 8);
    const auto run = i % 4 == 3 ? run_processes : run_threads;
    EXPECT_EQ(run(pes, options, [&](World& world) { return solve_on(world, subject); }), 0) << subject.text(pes);
  }
}

// A packet for each row and PE that it is cut at, however many entries are behind it.
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
  const Subject subject{
      0, triangular_of(generate(Kind::banded, 300, 1), Part::whole, false), 1, Sharing::cyclic, 10, 1, false, false};
  // The lost PE's exit code hides the others', which count here instead.
  void* shared = mmap(nullptr, sizeof(int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  const std::atomic_ref<int> told(*static_cast<int*>(shared));
  const int code = run_processes(3, {.heap_bytes = std::size_t{32} << 20, .wait_limit = 10}, [&](World& world) {
    const Levels levels = levels_of(subject.system);
    const Shares shares = share(subject.system, levels, 3, subject.sharing, subject.block);
    const Schedule schedule = schedule_of(subject.system, levels, shares, world.rank());
    shmem::Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20});
    Solver<double> solver(heap, schedule, {});
    solver.set_right(std::vector<double>(schedule.rows.size(), 1.0));
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
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(9));
}

}  // namespace
}  // namespace imbrex::jobs::sparse
