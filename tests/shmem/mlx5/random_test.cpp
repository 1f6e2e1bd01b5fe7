// 100,000 random operations of 1 to 4 PEs, each through two contexts, over NICs that are late, look twice, and take
// queues in any order. Each context has cells of its own on every PE and knows exactly what must be in them; tickets
// that all draw from one word are each drawn once; and a NIC has done as many requests as were posted.
#include <gtest/gtest.h>

#include <random>

#include "shmem/mlx5/fixture.hpp"
#include "shmem/overwritten.hpp"
#include "shmem/random_operations.hpp"
#include "support/random_plan.hpp"

namespace imbrex::shmem::mlx5::test {
namespace {

using shmem::test::count_random_faults, shmem::test::said_as_fault;

constexpr WorldOptions world_options{.heap_bytes = std::size_t{64} << 20, .wait_limit = 60};
constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{8} << 20};
// Rings of four go round hundreds of times; 5 cells and more are several requests.
constexpr QueueOptions queue_options{
    .contexts = shmem::test::random_blocks, .slots = 4, .largest = 64, .stage_bytes = 64};

// 0: all is as it must be. What is not, is said.
int run(World& world, std::uint64_t seed, std::uint64_t operations, const NicOptions& options) {
  return at_site(world, heap_options, queue_options, options, [&](Site& site) {
    int faults = count_random_faults<Mlx5>(site.heap, seed, operations);
    const auto expect = [&](const char* what, std::uint64_t got, std::uint64_t wanted) {
      faults += said_as_fault(world, what, got, wanted);
    };
    std::uint64_t posted = 0;
    for (const Port& port : site.queues.ports()) posted += port.queue->posted;
    const NicCounts counts = site.nic.counts();
    expect("requests that were done", counts.requests, posted);
    expect("requests that were refused or flushed", counts.refused + counts.flushed, 0);
    expect("whether rings went round a hundred times", counts.laps > 100, 1);
    expect("whether doorbells were doubled", counts.doubled > 0, options.double_doorbells);
    return faults == 0 ? 0 : 1;
  });
}

TEST(Mlx5Random, OperationsAreNeitherLostNorDoubled) {
  const std::uint64_t seed = imbrex::test::seed_from_environment();
  for (int pes = 1; pes <= 4; ++pes)  // 10,000 a PE
    EXPECT_EQ(run_processes(pes, world_options, [&](World& world) { return run(world, seed, 5000, unkind(seed)); }), 0);
}

// What is lost or doubled is seen.
TEST(Mlx5Random, FindsWhatANicDoesWrong) {
  const std::uint64_t seed = imbrex::test::seed_from_environment();
  for (int i = 0; i < 4; ++i) {
    NicOptions options = unkind(seed);
    (i % 2 == 0 ? options.lose_at : options.repeat_at) = 200 + static_cast<std::uint64_t>(i) * 150;
    EXPECT_EQ(run_processes(2, world_options, [&](World& world) { return run(world, seed, 1500, options); }), 1);
  }
}

TEST(Mlx5Random, RefusedRequestsEndEveryPE) {
  const std::uint64_t seed = imbrex::test::seed_from_environment();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 10; ++i) {
    NicOptions options = unkind(random());
    options.refuse_at = random() % 3000;
    options.syndrome = 0x15;
    const int pes = 1 + i % 4;
    const int code = run_processes(pes, world_options, [&](World& world) {
      try {
        run(world, seed, 2000, options);
      } catch (const Error& error) {
        const std::string said = error.what();
        const bool named = said.find("the NIC refused request") != std::string::npos;
        if (!named) std::fprintf(stderr, "PE %d said: %s\n", world.rank(), said.c_str());
        return named ? 7 : 8;
      }
      return 9;
    });
    EXPECT_EQ(code, 7) << "refused at " << options.refuse_at << " of " << pes << " PEs";
  }
}

TEST(Mlx5Random, APutIsDoneWithItsSourceWhenItReturns) {
  shmem::test::expect_puts_done_with_their_source([](shmem::test::Put how) {
    return run_processes(2, world_options, [&](World& world) {
      return at_site(world, heap_options, {.contexts = 1, .slots = 4}, unkind(7),
                     [&](Site& site) { return shmem::test::run_overwritten<Mlx5>(site.heap, how); });
    });
  });
}

// 150,000 requests of one queue: the 16 bits of their index wrap twice.
IMBREX_KERNEL wrap(Handle handle, std::uint64_t* cell, std::uint64_t* wrong) {
  Context<Mlx5> context(handle);
  for (std::uint64_t i = 1; i <= 150000; ++i) {
    context.atomic_add(cell, 1, 0);
    if (i % 5000 != 0) continue;
    context.quiet();
    if (words::load(cell) != i) ++*wrong;
  }
}

TEST(Mlx5Random, IndicesWrap) {
  const int code = run_threads(1, world_options, [&](World& world) {
    return at_site(world, heap_options, {.contexts = 1, .slots = 32}, {}, [&](Site& site) {
      const auto cell = site.heap.array<std::uint64_t>(1);
      std::uint64_t wrong = 0;
      launch(site.heap, {}, wrap, site.heap.handle(), cell.data(), &wrong);
      return wrong == 0 && site.nic.counts().requests == 150000 ? 0 : 1;
    });
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex::shmem::mlx5::test
