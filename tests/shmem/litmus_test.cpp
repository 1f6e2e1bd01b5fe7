// Litmus tests on the CPU: 10,000 repeats, on the transport that there is, and on one that delays and reorders, where
// each is seen to fail without what orders.
#include <gtest/gtest.h>

#include "shmem/litmus_runs.hpp"
#include "shmem/reordering.hpp"

namespace imbrex::shmem::test {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr std::uint64_t repeats = 1000;  // they make it slow
#else
constexpr std::uint64_t repeats = 10000;
#endif
constexpr HeapOptions heap_options{
    .device = Device::cpu, .bytes = std::size_t{16} << 20, .pauses = 7, .max_pause = 2e-6};

// 0: nothing was seen that must not be; 1: something was; 2: a wait gave up.
template <typename Transport>
int run(Litmus what, std::uint64_t rounds, bool ordered, int pes) {
  return run_processes(pes, {.heap_bytes = std::size_t{64} << 20, .wait_limit = 60}, [&](World& world) {
    Heap heap(world, heap_options);
    Bench bench(heap, nullptr);
    const std::uint64_t wrong = run_litmus<Transport>(bench, what, rounds, ordered);
    world.barrier();
    return wrong == none ? 2 : wrong == 0 ? 0 : 1;
  });
}

class ShmemLitmus : public testing::TestWithParam<int> {};

TEST_P(ShmemLitmus, Holds) {
  const auto what = static_cast<Litmus>(GetParam());
  for (const int pes : {2, 3}) EXPECT_EQ(run<LoadStore>(what, repeats, true, pes), 0) << pes;
}

TEST_P(ShmemLitmus, HoldsWhereTransportsReorder) {
  EXPECT_EQ(run<Reordering<LoadStore>>(static_cast<Litmus>(GetParam()), repeats, true, 2), 0);
}

TEST_P(ShmemLitmus, CanFail) {
  // Two readers disagree only where both are held up at once: asked again until they do.
  int code = 0;
  for (int attempt = 0; attempt < 30 && code == 0; ++attempt)
    code = run<Reordering<LoadStore>>(static_cast<Litmus>(GetParam()), repeats / 4, false, 2);
  EXPECT_EQ(code, 1);
}

INSTANTIATE_TEST_SUITE_P(All, ShmemLitmus, testing::Range(0, litmuses));

TEST(ShmemLitmusLogs, DisagreementsAreFound) {
  EXPECT_EQ(disagreements({{1, 0}}, {{1, 0}}), 1u);
  EXPECT_EQ(disagreements({{1, 0}}, {{1, 1}}), 0u);
  EXPECT_EQ(disagreements({{1, 0}, {2, 2}}, {{0, 0}, {2, 1}}), 0u);
  EXPECT_EQ(disagreements({{5, 3}}, {{3, 1}, {4, 4}, {6, 7}}), 1u);
}

}  // namespace
}  // namespace imbrex::shmem::test
