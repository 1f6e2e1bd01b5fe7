// 40,000 random operations of 1 to 4 PEs by rings of four slots, which go round thousands of times: over a wire that is
// late and keeps no order, and a thread that pauses. Nothing is lost or doubled, and what is, is seen.
#include <gtest/gtest.h>

#include "shmem/random_operations.hpp"
#include "shmem/ring/fixture.hpp"
#include "support/random_plan.hpp"

namespace imbrex::shmem::ring::test {
namespace {

constexpr WorldOptions world_options{.heap_bytes = std::size_t{64} << 20, .wait_limit = 60};
constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{8} << 20};

// 0: all is as it must be. What is not, is said.
template <typename Transport>
int run(World& world, std::uint64_t seed, std::uint64_t operations, Kindness kindness,
        const std::function<std::unique_ptr<Wire>(std::unique_ptr<Wire>)>& wrap = {}) {
  const RingTrial unkind{
      .contexts = shmem::test::random_blocks, .slots = 4, .stage_bytes = 64, .seed = seed, .max_pause = 2e-5};
  const auto body = [&](Site& site) {
    int faults = shmem::test::count_random_faults<Transport>(site.heap, seed, operations);
    faults += shmem::test::said_as_fault(world, "whether rings went round a hundred times",
                                         site.rings.counts().laps > 100, 1);
    return faults == 0 ? 0 : 1;
  };
  return at_site(world, heap_options, unkind, kindness, body, wrap);
}

TEST(RingRandom, OperationsAreNeitherLostNorDoubled) {
  const std::uint64_t seed = imbrex::test::seed_from_environment();
  for (int pes = 1; pes <= 4; ++pes)
    EXPECT_EQ(
        run_processes(pes, world_options, [&](World& world) { return run<Ring>(world, seed, 2000, Kindness::unkind); }),
        0);
}

TEST(RingRandom, SoOfContextsThatOneThreadHas) {
  const std::uint64_t seed = imbrex::test::seed_from_environment() + 1;
  for (const auto kindness : {Kindness::kind, Kindness::unkind})
    EXPECT_EQ(run_threads(3, world_options, [&](World& world) { return run<OwnRing>(world, seed, 2000, kindness); }),
              0);
}

TEST(RingRandom, FindsWhatIsLostOrDoubled) {
  const std::uint64_t seed = imbrex::test::seed_from_environment();
  for (int i = 0; i < 4; ++i) {
    using enum FaultyWire::Fault;
    const auto wrap = [&](std::unique_ptr<Wire> wire) {
      return std::make_unique<FaultyWire>(std::move(wire), i % 2 == 0 ? loses_a_put : repeats_an_addition,
                                          20 + static_cast<std::uint64_t>(i) * 15);
    };
    EXPECT_EQ(run_processes(2, world_options,
                            [&](World& world) { return run<Ring>(world, seed, 1500, Kindness::kind, wrap); }),
              1)
        << i;
  }
}

// 10,000 laps of one ring, in which the 32 bits that count its slots wrap.
constexpr std::uint64_t additions = 40000;

IMBREX_KERNEL wrap(Handle handle, std::uint64_t* cell, std::uint64_t* wrong) {
  Context<OwnRing> context(handle);
  for (std::uint64_t i = 1; i <= additions; ++i) {
    context.atomic_add(cell, 1, 0);
    if (i % 1000 != 0) continue;
    context.quiet();
    if (words::load(cell) != i) ++*wrong;
  }
}

TEST(RingRandom, LapsWrap) {
  const int code = run_threads(1, world_options, [&](World& world) {
    return at_site(
        world, heap_options, {.contexts = 1, .slots = 4, .first = 0u - 20000}, Kindness::kind, [&](Site& site) {
          const auto cell = site.heap.array<std::uint64_t>(1);
          std::uint64_t wrong = 0;
          launch(site.heap, {}, wrap, site.heap.handle(), cell.data(), &wrong);
          return wrong == 0 && site.rings.counts().descriptors == additions && site.rings.counts().laps == additions / 4
                     ? 0
                     : 1;
        });
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex::shmem::ring::test
