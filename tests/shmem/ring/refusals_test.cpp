// What the thread that serves rings refuses, and what kernels and hosts hear of it; rings that are full, a thread that
// stops, a wire that fails, and options out of range.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

#include "imbrex/device/shmem/ring/mixed.hpp"
#include "shmem/ring/fixture.hpp"

namespace imbrex::shmem::ring::test {
namespace {

constexpr WorldOptions world_options{.heap_bytes = std::size_t{64} << 20, .wait_limit = 20};
constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{4} << 20};
constexpr RingTrial ring_options{.contexts = 2, .slots = 8};

// PE 0 is the first to end: the others only end with it.
void wait_for_the_end(const Handle& handle) {
  const auto begin = std::chrono::steady_clock::now();
  while (!device::given_up(handle.group) && std::chrono::steady_clock::now() - begin < std::chrono::minutes(2))
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

// What PE 0 does in context 1 of `handle`; the others wait until all ends.
using Deed = std::function<void(const Handle&, std::uint64_t*)>;

IMBREX_KERNEL do_deed(Handle handle, const Deed* deed, std::uint64_t* box) {
  if (handle.pe() == 0) (*deed)(handle, box);
  wait_for_the_end(handle);
}

// All PEs end, in time, and say `part`.
void expect_end(const std::string& part, double limit, const RingTrial& options, const Deed& deed,
                const std::function<std::unique_ptr<Wire>(std::unique_ptr<Wire>)>& wrap = {}) {
  const auto begin = std::chrono::steady_clock::now();
  WorldOptions on_world = world_options;
  on_world.wait_limit = limit;
  const int code = run_processes(3, on_world, [&](World& world) {
    Heap heap(world, heap_options);
    std::unique_ptr<Wire> wire = mapped_wire(heap);
    if (wrap && world.rank() == 0) wire = wrap(std::move(wire));
    RingTrial own = options;
    if (world.rank() != 0) own.stop_at = none;
    TrialRings rings(heap, own, std::move(wire));
    const auto box = heap.array<std::uint64_t>(64);
    try {
      launch(heap, {}, do_deed, heap.handle(), &deed, box.data());
    } catch (const Error& error) {
      if (error.code() != ErrorCode::runtime_failure) return 1;
      if (std::string(error.what()).find(part) != std::string::npos) return 7;
      std::fprintf(stderr, "PE %d said: %s\n", world.rank(), error.what());
      return 2;
    }
    return 3;
  });
  EXPECT_EQ(code, 7) << part;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(100));
}

// A slot as a kernel that has gone wrong would write it, the first of context 1.
Deed posts(std::function<words::Pair(const Handle&)> slot, words::Pair extension = {}) {
  return [slot = std::move(slot), extension](const Handle& handle, std::uint64_t*) {
    const Shared& shared = static_cast<const Endpoint*>(handle.transport)->contexts[1];
    store_slot(shared.ring, slot(handle), parity_of(0, shared.log_slots));
    store_slot(shared.ring + 1, extension, parity_of(1, shared.log_slots));
  };
}

std::uint64_t end_of(const Handle& handle) {
  return static_cast<std::uint64_t>(handle.own - reinterpret_cast<std::byte*>(handle.group.own)) + handle.bytes;
}

constexpr std::uint32_t put = number_of<Standard::put>(), put_signal = number_of<Standard::put_signal>(),
                        get = number_of<Standard::get>(), word = number_of_word<std::uint64_t>();

TEST(RingDescriptors, HostileOnesEndAllPEsAndAreNamed) {
  const std::string of = "PE 0: slot 0 of the ring of context 1, to PE ";
  const auto expect = [&](const std::string& part, std::function<words::Pair(const Handle&)> slot,
                          words::Pair extension = {}) {
    expect_end(part, 20, ring_options, posts(std::move(slot), extension));
  };
  expect(of + "2 at offset 64, was refused: it names a template that is not registered",
         [](const Handle&) { return move_slot(60000, 2, 64, 64, 8); });
  expect("a template that is not registered", [](const Handle&) { return move_slot(first_own, 2, 64, 64, 8); });
  expect("a template that is not registered",
         [](const Handle&) { return operand_slot(number_of_atomic(AtomicCode::fetch_and, WordCode::f32), 1, 64, 1); });
  expect(of + "3 at offset 64, was refused: there is no such PE",
         [](const Handle&) { return move_slot(put, 3, 64, 64, 8); });
  expect("there is no such PE", [](const Handle&) { return operand_slot(number_of<Standard::fence>(), 63, 0, 0); });
  expect("does not hold its bytes there", [](const Handle& h) { return move_slot(put, 1, end_of(h) - 7, 64, 8); });
  expect("does not hold its bytes there", [](const Handle&) { return move_slot(put, 1, offsets_end - 1, 64, 8); });
  expect("does not hold its bytes here", [](const Handle& h) { return move_slot(put, 1, 64, end_of(h) - 7, 8); });
  expect("does not hold its bytes here", [](const Handle& h) { return move_slot(get, 1, 64, end_of(h) - 7, 8); });
  expect("does not hold its bytes there", [](const Handle& h) { return operand_slot(word, 1, end_of(h), 1); });
  expect("is not aligned there", [](const Handle&) { return operand_slot(word, 1, 68, 1); });
  expect("is not aligned there", [](const Handle&) { return operand_slot(number_of<Standard::put_pair>(), 1, 72, 1); });
  expect(
      "does not hold its bytes there", [](const Handle&) { return move_slot(put_signal, 1, 64, 64, 8); },
      extension_slot(1, offsets_end - 8));
  expect(
      "is not aligned there", [](const Handle&) { return move_slot(put_signal, 1, 64, 64, 8); }, extension_slot(1, 4));
}

// The bounds themselves are no fault: the same at the very end goes well.
TEST(RingDescriptors, WhatLiesAtTheEndIsDone) {
  const int code = run_threads(2, world_options, [&](World& world) {
    return at_site(world, heap_options, ring_options, Kindness::kind, [&](Site& site) {
      const Handle& handle = site.heap.handle();
      posts([](const Handle& h) { return move_slot(put, 1, end_of(h) - 8, end_of(h) - 8, 8); })(handle, nullptr);
      const Progress& progress = *static_cast<const Endpoint*>(handle.transport)->contexts[1].progress;
      while (words::load_acquire(&progress.word) >> 32 == 0) std::this_thread::yield();
      site.heap.check();
      return 0;
    });
  });
  EXPECT_EQ(code, 0);
}

TEST(RingFailures, AFullRingIsABoundedError) {
  expect_end(
      "PE 0, block 0 waited longer than 3 s for room in its context's ring of 8 slots: 11 are needed, 2 were read", 3,
      {.contexts = 2, .slots = 8, .stop_at = 2}, [](const Handle& handle, std::uint64_t* box) {
        Context<Ring> context(handle);
        for (int i = 0; i < 20; ++i) context.put_nbi(box, box + 8, 1, 1);
      });
}

TEST(RingFailures, AThreadThatStopsIsABoundedError) {
  const auto stopped = [](auto&& call) {
    expect_end("PE 0, block 0 waited longer than 3 s for its context's ring: of 1 slots, 0 are complete", 3,
               {.contexts = 2, .slots = 8, .stop_at = 0}, call);
  };
  stopped([](const Handle& handle, std::uint64_t* box) { Context<Ring>(handle).get(box, box + 8, 2, 2); });
  stopped([](const Handle& handle, std::uint64_t* box) {
    Context<OwnRing> context(handle);
    context.p(box, 1, 1);
    context.quiet();
  });
}

// The second transfer to PE 1 finds no PE there.
class LostWire final : public Wire {
 public:
  explicit LostWire(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {}
  bool begin(const WireTransfer& transfer) override {
    if (transfer.pe == 1 && ++count_ == 2) throw Error(ErrorCode::runtime_failure, "PE 1 cannot be reached");
    return wire_->begin(transfer);
  }
  std::size_t poll(std::span<std::uint64_t> tokens) override { return wire_->poll(tokens); }
  bool keeps_order() const override { return true; }

 private:
  std::unique_ptr<Wire> wire_;
  int count_ = 0;
};

TEST(RingFailures, AWireThatFailsEndsAllPEsAndIsNamed) {
  expect_end(
      "PE 0: the thread that serves its rings: PE 1 cannot be reached", 20, ring_options,
      [](const Handle& handle, std::uint64_t* box) {
        Context<Ring> context(handle);
        for (int i = 0; i < 20; ++i) context.put_nbi(box, box + 8, 1, 1);
        context.quiet();
      },
      [](std::unique_ptr<Wire> wire) { return std::make_unique<LostWire>(std::move(wire)); });
}

std::string said_of(const std::function<void(Heap&)>& call) {
  std::string words;
  run_threads(1, world_options, [&](World& world) {
    Heap heap(world, heap_options);
    try {
      call(heap);
    } catch (const Error& error) {
      words = error.what();
    }
    return 0;
  });
  return words;
}

TEST(RingOptions, AreRefusedOutOfRange) {
  const auto said = [](const RingTrial& options) {
    return said_of([&](Heap& heap) { TrialRings rings(heap, options); });
  };
  EXPECT_NE(said({.slots = 12}).find("slots = 12"), std::string::npos);
  EXPECT_NE(said({.slots = 2}).find("slots = 2"), std::string::npos);
  EXPECT_NE(said({.contexts = 0}).find("contexts = 0"), std::string::npos);
  EXPECT_NE(said({.stage_bytes = 100}).find("stage_bytes = 100"), std::string::npos);
  EXPECT_NE(said({.templates = 70000}).find("templates = 70000"), std::string::npos);
  EXPECT_NE(said({.first = 3}).find("first = 3"), std::string::npos);
  EXPECT_NE(said({.max_pause = 2}).find("max_pause = 2"), std::string::npos);
  EXPECT_NE(said({.contexts = 60000}).find("symmetric heap is full"), std::string::npos);
}

template <typename Transport>
void expect_fewer_contexts() {
  for (const std::uint32_t of_heap : {1u, 2u, 3u}) {
    const int code = run_threads(1, world_options, [&](World& world) {
      Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20, .contexts = of_heap});
      TrialRings rings(heap, {.contexts = 2, .slots = 8});
      for (std::uint32_t number = 0; number < 5; ++number)
        EXPECT_EQ(Transport().open(heap.handle(), number), number < std::min(of_heap, 2u))
            << number << " of " << of_heap;
      return 0;
    });
    EXPECT_EQ(code, 0);
  }
}

// A test's PEs share their memory, so that a store to one that is to be far would do no harm.
TEST(RingContexts, HavePointersToNearPesOnly) {
  const int code = run_threads(3, world_options, [&](World& world) {
    Heap heap(world, heap_options);
    TrialRings rings(heap, {.contexts = 2, .slots = 8, .far = 0b010});
    const auto box = heap.array<std::uint64_t>(1);
    MixedRing context;
    if (!context.open(heap.handle(), 0)) return 1;
    if (world.rank() != 0) return 0;
    for (const std::uint32_t pe : {0u, 1u, 2u, max_pes, max_pes + 2})
      EXPECT_EQ(context.pointer(heap.handle(), box.data(), pe) != nullptr, pe == 0 || pe == 2) << pe;
    return 0;
  });
  EXPECT_EQ(code, 0);
}

// The heap has a number of contexts, and so have the rings: the smaller one counts.
TEST(RingContexts, AreNoMoreThanTheHeapsAndTheRings) {
  expect_fewer_contexts<Ring>();
  expect_fewer_contexts<OwnRing>();
  expect_fewer_contexts<MixedRing>();
}

TEST(RingTemplates, AreRefusedOutsideOfTheHeap) {
  const auto said = [](const std::function<RegisteredPut(std::byte*)>& made) {
    return said_of([&](Heap& heap) {
      TrialRings rings(heap, {.templates = 1});
      std::byte* own = heap.handle().own;
      rings.add(made(own));
      rings.add(made(own));
    });
  };
  const auto signal = [](std::byte* own) { return reinterpret_cast<Signal*>(own); };
  EXPECT_NE(said([&](std::byte* own) {
              return RegisteredPut{own, own - 1, 8, signal(own)};
            }).find("data here"),
            std::string::npos);
  EXPECT_NE(said([&](std::byte* own) {
              return RegisteredPut{own, own, heap_options.bytes + 1, signal(own)};
            }).find("data there"),
            std::string::npos);
  EXPECT_NE(said([&](std::byte*) { return RegisteredPut{}; }).find("a signal"), std::string::npos);
  EXPECT_NE(said([&](std::byte* own) { return RegisteredPut{.signal = signal(own + 4)}; }).find("aligned to 8"),
            std::string::npos);
  EXPECT_NE(said([&](std::byte* own) { return RegisteredPut{.signal = signal(own)}; }).find("beyond the 1"),
            std::string::npos);
}

}  // namespace
}  // namespace imbrex::shmem::ring::test
