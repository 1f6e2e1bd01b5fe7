// Puts that the host registered: one slot has the signal's value, and data comes before it, also where the wire keeps
// no order; and a test that sees when a put's own signal does not wait for its data.
#include <gtest/gtest.h>

#include <array>

#include "shmem/overwritten.hpp"
#include "shmem/ring/fixture.hpp"
#include "shmem/ring/registered.hpp"

namespace imbrex::shmem::ring::test {
namespace {

constexpr WorldOptions world_options{.heap_bytes = std::size_t{16} << 20, .wait_limit = 60};
constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{4} << 20};
constexpr std::uint32_t count = 300;

// 0: all came whole; 1: something did not.
int run(World& world, Kindness kindness) {
  return at_site(world, heap_options, {.contexts = 1, .slots = 4}, kindness, [&](Site& site) {
    const auto landing = site.heap.array<std::uint64_t>(count), source = site.heap.array<std::uint64_t>(count);
    const auto signals = site.heap.array<Signal>(2);
    std::uint64_t wrong = 0;
    const std::uint32_t number =
        site.rings.add({.there = landing.data(), .here = source.data(), .bytes = count * 8, .signal = signals.data()});
    launch(site.heap, {}, shmem::test::pass_registered, site.heap.handle(), number, landing.data(), source.data(),
           count, signals.data(), std::uint64_t{1000}, &wrong);
    return wrong == 0 ? 0 : 1;
  });
}

TEST(RingRegistered, PutsComeWhole) {
  for (const auto kindness : {Kindness::kind, Kindness::unkind}) {
    EXPECT_EQ(run_processes(3, world_options, [&](World& world) { return run(world, kindness); }), 0);
    EXPECT_EQ(run_threads(2, world_options, [&](World& world) { return run(world, kindness); }), 0);
  }
}

// What a put and its signal come to, where nothing orders them: so the wire does reorder.
IMBREX_KERNEL pass_unordered(Handle handle, std::uint64_t* landing, std::uint64_t* source, Signal* signals,
                             std::uint64_t* wrong) {
  Context<Ring> context(handle);
  const std::uint32_t pes = context.pes(), next = (context.pe() + 1) % pes, before = (context.pe() + pes - 1) % pes;
  for (std::uint64_t round = 1; round <= 1000; ++round) {
    for (std::uint32_t i = 0; i < count; ++i) source[i] = round * 1000 + i;
    context.put_nbi(landing, source, count, next);
    context.signal_set(signals, round, next);
    if (!context.signal_wait_until(signals, Compare::greater_equal, round)) return;
    for (std::uint32_t i = 0; i < count; ++i)
      if (words::load(landing + i) != round * 1000 + i) ++*wrong;
    context.quiet();
    context.signal_set(signals + 1, round, before);
    if (!context.signal_wait_until(signals + 1, Compare::greater_equal, round)) return;
  }
}

TEST(RingRegistered, WithoutOrderSomethingIsMissing) {
  const int code = run_processes(2, world_options, [&](World& world) {
    return at_site(world, heap_options, {.contexts = 1, .slots = 4}, Kindness::unkind, [&](Site& site) {
      const auto landing = site.heap.array<std::uint64_t>(count), source = site.heap.array<std::uint64_t>(count);
      const auto signals = site.heap.array<Signal>(2);
      std::uint64_t wrong = 0;
      launch(site.heap, {}, pass_unordered, site.heap.handle(), landing.data(), source.data(), signals.data(), &wrong);
      return wrong == 0 ? 0 : 1;
    });
  });
  EXPECT_EQ(code, 1);
}

TEST(RingRegistered, APutIsDoneWithItsSourceWhenItReturns) {
  shmem::test::expect_puts_done_with_their_source([](shmem::test::Put how) {
    return run_processes(2, world_options, [&](World& world) {
      return at_site(world, heap_options, {.contexts = 1, .slots = 4}, Kindness::unkind,
                     [&](Site& site) { return shmem::test::run_overwritten<Ring>(site.heap, how); });
    });
  });
}

// Descriptors say what they were told.
TEST(RingDescriptor, TakesApartWhatWasPutTogether) {
  for (const std::uint64_t operand : {std::uint64_t{0}, ~std::uint64_t{0}, parity_bit, parity_bit - 1}) {
    const Descriptor one = descriptor_of(operand_slot(65535, 63, offsets_end - 1, operand));
    EXPECT_EQ(std::tuple(one.number, one.pe, one.there, one.operand),
              std::tuple(65535u, 63u, offsets_end - 1, operand));
    const Extension more = extension_of(extension_slot(operand, offsets_end - 1, true));
    EXPECT_EQ(std::tuple(more.value, more.there, more.add), std::tuple(operand, offsets_end - 1, true));
    EXPECT_EQ(extension_slot(operand, offsets_end - 1, true).second & parity_bit, 0u);
  }
  const words::Pair slot = move_slot(65535, 63, offsets_end - 1, offsets_end - 1, largest_move);
  EXPECT_EQ((slot.first | slot.second) & parity_bit, 0u);
  const Descriptor one = descriptor_of(slot);
  EXPECT_EQ(std::tuple(one.there, one.here, one.bytes), std::tuple(offsets_end - 1, offsets_end - 1, largest_move));
}

}  // namespace
}  // namespace imbrex::shmem::ring::test
