// The symmetric heap of hosts: memory, teams, launches, and what is refused.
#include <gtest/gtest.h>

#include <cstdio>

#include "imbrex/shmem.hpp"

namespace imbrex::shmem {
namespace {

constexpr WorldOptions small{.heap_bytes = std::size_t{64} << 20, .wait_limit = 20};
constexpr HeapOptions on_cpu{.device = Device::cpu, .bytes = std::size_t{4} << 20};

// Each PE puts its number to the next, round by round, by as many blocks as there are.
IMBREX_KERNEL ring(Handle handle, std::uint64_t* boxes, Signal* signals, std::uint64_t rounds) {
  Context context(handle);
  const Block block;
  std::uint64_t* box = boxes + block_index();
  Signal* signal = signals + block_index();
  const std::uint32_t next = (context.pe() + 1) % context.pes();
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    std::uint64_t token = round * 100 + context.pe();
    context.put_signal(box, &token, 1, signal, 1, SignalOperation::add, next, block);
    if (!context.signal_wait_until(signal, Compare::greater_equal, round, block)) return;
  }
}

int expect_ring(World& world) {
  Heap heap(world, on_cpu);
  constexpr std::uint32_t blocks = 3;
  const auto boxes = heap.array<std::uint64_t>(blocks);
  const auto signals = heap.array<Signal>(blocks);
  launch(heap, {.blocks = blocks, .threads = 64}, ring, heap.handle(), boxes.data(), signals.data(), std::uint64_t{50});
  heap.finish();
  heap.barrier(heap.world_team());
  const int before = (world.rank() + world.size() - 1) % world.size();
  for (std::uint32_t b = 0; b < blocks; ++b)
    if (boxes.data()[b] != 5000u + static_cast<unsigned>(before) || signals.data()[b] != 50) return 1;
  return 0;
}

TEST(ShmemHeap, ARingOfPuts) {
  EXPECT_EQ(run_threads(4, small, expect_ring), 0);
  EXPECT_EQ(run_processes(4, small, expect_ring), 0);
}

int expect_teams(World& world) {
  Heap heap(world, on_cpu);
  const auto even = heap.split_strided(heap.world_team(), 0, 2, (world.size() + 1) / 2);
  if (even.has_value() != (world.rank() % 2 == 0)) return 1;
  const auto values = heap.array<int>(2);
  if (even) {
    Context context(heap.handle());
    values.data()[0] = world.rank() + 1;
    if (!reduce(context, *even, Reduction::sum, values.data() + 1, values.data(), 1)) heap.check();
    int sum = 0;
    for (int r = 0; r < world.size(); r += 2) sum += r + 1;
    if (values.data()[1] != sum) return 1;
    for (int i = 0; i < 100; ++i) heap.barrier(*even);
    heap.release(*even);
  }
  const auto again = heap.split_strided(heap.world_team(), world.size() - 1, -1, world.size());
  return again && again->me == static_cast<unsigned>(world.size() - 1 - world.rank()) ? 0 : 1;
}

TEST(ShmemHeap, Teams) {
  EXPECT_EQ(run_processes(5, small, expect_teams), 0);
  EXPECT_EQ(run_threads(1, small, expect_teams), 0);
}

int expect_refusals(World& world) {
  Heap heap(world, on_cpu);
  const auto refused = [](ErrorCode code, const char* part, const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      if (error.code() == code && std::string(error.what()).find(part) != std::string::npos) return true;
      std::fprintf(stderr, "said: %s\n", error.what());
    }
    return false;
  };
  const auto bytes = static_cast<std::size_t>(world.rank() == 1 ? 64 : 128);
  bool well = refused(ErrorCode::invalid_input, "PE 0 calls allocate(128, 256), PE 1 calls allocate(64, 256)",
                      [&] { heap.allocate(bytes); });
  well &= refused(ErrorCode::runtime_failure, "symmetric heap is full", [&] { heap.allocate(std::size_t{5} << 20); });
  well &= refused(ErrorCode::runtime_failure, "symmetric heap is full", [&] { heap.allocate(~std::size_t{0}); });
  well &= refused(ErrorCode::invalid_input, "alignment = 24", [&] { heap.allocate(8, 24); });
  int here = 0;
  well &= refused(ErrorCode::invalid_input, "the symmetric heap does not hold them",
                  [&] { heap.write(&here, &here, 4, 0); });
  auto* own = static_cast<int*>(heap.allocate(8));
  well &= refused(ErrorCode::invalid_input, "PE 3: PEs are 0 to 2", [&] { heap.write(own, &here, 4, 3); });
  well &= refused(ErrorCode::invalid_input, "did not give it", [&] { heap.release(own + 1); });
  // Pieces do not overlap, whatever their alignment.
  std::byte* end = nullptr;
  for (const std::size_t alignment : {1, 256, 8, 4096, 64}) {
    auto* piece = static_cast<std::byte*>(heap.allocate(256, alignment));
    well &= piece >= end && reinterpret_cast<std::uintptr_t>(piece) % alignment == 0;
    end = piece + 256;
  }
  well &= heap.pointer(&here, 0) == nullptr && heap.pointer(own, world.rank()) == own;
  return well ? 0 : 1;
}

TEST(ShmemHeap, BadInputIsNamed) { EXPECT_EQ(run_processes(3, small, expect_refusals), 0); }

// PE 2 never comes: all others are told, within the limit.
IMBREX_KERNEL lonely(Handle handle, Signal* signal) {
  Context context(handle);
  context.signal_wait_until(signal, Compare::greater_equal, 1);
}

TEST(ShmemHeap, AWaitIsBoundedAndNamed) {
  const WorldOptions brief{.heap_bytes = std::size_t{64} << 20, .wait_limit = 0.5};
  const int code = run_processes(3, brief, [](World& world) {
    Heap heap(world, on_cpu);
    const auto signal = heap.array<Signal>(1);
    try {
      launch(heap, {}, lonely, heap.handle(), signal.data());
    } catch (const Error& error) {
      const std::string said = error.what();
      return said.find("waited longer than 0.5 s for what lies at offset") != std::string::npos ? 7 : 8;
    }
    return 9;
  });
  EXPECT_EQ(code, 7);
}

enum class Several { any, any_vector, some, some_vector };

// Waits for those of 4 variables that `status` does not leave out. `found` gets 99 where the wait failed.
IMBREX_KERNEL wait_for_several(Handle handle, Several which, const std::uint64_t* first, const int* status,
                               std::uint64_t* found) {
  Context context(handle);
  const std::uint64_t wanted[4] = {10, 11, 12, 13};
  std::uint64_t indices[4];
  bool well = false;
  switch (which) {
    case Several::any: well = context.wait_until_any(first, 4, status, Compare::equal, 12, *found); break;
    case Several::any_vector:
      well = context.wait_until_any_vector(first, 4, status, Compare::equal, wanted, *found);
      break;
    case Several::some: well = context.wait_until_some(first, 4, indices, status, Compare::equal, 12, *found); break;
    case Several::some_vector:
      well = context.wait_until_some_vector(first, 4, indices, status, Compare::equal, wanted, *found);
      break;
  }
  if (!well) *found = 99;
}

constexpr Several all_several[] = {Several::any, Several::any_vector, Several::some, Several::some_vector};

// Nothing of this is set: the error names the first variable that is waited for.
TEST(ShmemHeap, AWaitForSeveralNamesTheFirstOfThem) {
  for (const Several which : all_several) {
    const int code = run_threads(1, {.heap_bytes = std::size_t{16} << 20, .wait_limit = 0.05}, [&](World& world) {
      Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20});
      const auto variables = heap.array<std::uint64_t>(4);
      for (std::uint64_t i = 0; i < 4; ++i) variables.data()[i] = 20 + i;
      const int status[4] = {1, 1, 0, 0};
      std::uint64_t found = 0;
      std::string said;
      try {
        launch(heap, {}, wait_for_several, heap.handle(), which, variables.data(), status, &found);
      } catch (const Error& error) {
        said = error.what();
      }
      const auto offset = reinterpret_cast<std::byte*>(variables.data() + 2) - heap.handle().own;
      const std::string part =
          "for what lies at offset " + std::to_string(offset) + " of its heap: compared with 12, saw 22";
      EXPECT_NE(said.find(part), std::string::npos) << said << "; wanted: " << part;
      EXPECT_EQ(found, 99u);
      return 7;
    });
    EXPECT_EQ(code, 7);
  }
}

TEST(ShmemHeap, AWaitForNoneOfSeveralIsOver) {
  for (const Several which : all_several) {
    const int code = run_threads(1, {.heap_bytes = std::size_t{16} << 20, .wait_limit = 0.5}, [&](World& world) {
      Heap heap(world, {.device = Device::cpu, .bytes = std::size_t{1} << 20});
      const auto variables = heap.array<std::uint64_t>(4);
      const int status[4] = {1, 1, 1, 1};
      std::uint64_t found = 50;
      launch(heap, {}, wait_for_several, heap.handle(), which, variables.data(), status, &found);
      EXPECT_EQ(found, which == Several::any || which == Several::any_vector ? none : 0);
      return 0;
    });
    EXPECT_EQ(code, 0);
  }
}

}  // namespace
}  // namespace imbrex::shmem
