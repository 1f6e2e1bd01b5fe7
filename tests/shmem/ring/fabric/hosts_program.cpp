// What a PE of the tests over hosts runs: hosts_program suite EVERY | mixed_suite EVERY | teams | far CALL | ring
// FILE. The world comes from the environment.
#include <cstdio>
#include <filesystem>
#include <vector>

#include <fmt/format.h>

#include "runtime/host_world.hpp"
#include "shmem/ring/fixture.hpp"
#include "shmem/suite.hpp"

namespace imbrex::shmem::test {

// ../calls.cpp and ../moves.cpp.
std::vector<Case> calls_on_ring();
std::vector<Case> moves_on_ring();
std::vector<Case> calls_on_mixed_ring();
std::vector<Case> moves_on_mixed_ring();

namespace {

constexpr HeapOptions heap_options{.device = Device::cpu, .bytes = std::size_t{16} << 20};
constexpr ring::RingOptions ring_options{.contexts = 8, .slots = 8};

int expect(bool well, const std::string& what) {
  if (!well) throw Error(ErrorCode::unsound, what);
  return 0;
}

int suite(World& world, bool mixed, std::size_t every) {
  Heap heap(world, heap_options);
  ring::Rings rings(heap, ring_options);
  Bench bench(heap, nullptr);
  int wrong = 0;
  std::size_t ran = 0;
  for (const auto& cases :
       {mixed ? calls_on_mixed_ring() : calls_on_ring(), mixed ? moves_on_mixed_ring() : moves_on_ring()})
    ran += run_all(bench, cases, every, [&](const std::string& line) {
      if (++wrong <= 5) std::fprintf(stderr, "%s\n", line.c_str());
    });
  world.barrier();
  if (world.rank() == 0) std::printf("%zu cases\n", ran);
  return wrong == 0 && ran > 100 ? 0 : 1;
}

// Teams of hosts' calls, over hosts and within them.
int teams(World& world) {
  Heap heap(world, heap_options);
  const int pes = heap.pes();
  const Team all = heap.world_team();
  for (int round = 0; round < 20; ++round) {
    const auto even = heap.split_strided(all, 0, 2, (pes + 1) / 2);
    expect(even.has_value() == (heap.pe() % 2 == 0), "members of the even team");
    const auto back = heap.split_strided(all, pes - 1, -1, pes);
    expect(back && back->me == static_cast<std::uint32_t>(pes - 1 - heap.pe()), "its number in the team from behind");
    if (even) {
      const auto first = heap.split_strided(*even, 0, 1, 1);
      expect(first.has_value() == (heap.pe() == 0), "the team of one");
      for (int i = 0; i < 10; ++i) heap.barrier(*even);
      if (first) heap.release(*first);
    }
    for (int i = 0; i < 10; ++i) heap.barrier(*back);
    if (even) heap.release(*even);
    heap.release(*back);
  }
  world.barrier();
  return 0;
}

IMBREX_KERNEL store(Handle handle, int* to, std::uint32_t pe) {
  Context context(handle);
  context.p(to, 7, pe);
}
IMBREX_KERNEL meet(Handle handle, Team team) {
  Context context(handle);
  barrier(context, team);
}
IMBREX_KERNEL ask(Handle handle, int* to, std::uint32_t pe, bool* well) {
  Context context(handle);
  *well = context.pointer(to, pe) == nullptr && context.pointer(to, context.pe()) == to;
}

// What does not reach the last PE, of another host, says so.
int far(World& world, const std::string& call) {
  Heap heap(world, heap_options);
  const auto place = heap.array<int>(16);
  const int last = world.size() - 1;
  if (world.rank() == 0) {
    int value = 0;
    bool well = false;
    launch(heap, {}, ask, heap.handle(), place.data(), static_cast<std::uint32_t>(last), &well);
    expect(well && heap.pointer(place.data(), last) == nullptr, "a pointer to another host's memory");
    if (call == "write") heap.write(place.data(), &value, sizeof value, last);
    if (call == "read") heap.read(&value, place.data(), sizeof value, last);
    if (call == "kernel") launch(heap, {}, store, heap.handle(), place.data(), static_cast<std::uint32_t>(last));
    if (call == "team") launch(heap, {}, meet, heap.handle(), heap.world_team());
    throw Error(ErrorCode::unsound, "nothing was refused");
  }
  world.barrier();
  return 0;
}

IMBREX_KERNEL go_round(Handle handle, Signal* signal, int* data, std::uint64_t rounds) {
  Context<Ring> context(handle);
  const std::uint32_t next = (context.pe() + 1) % context.pes();
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    context.put_signal_nbi(data + 1024, data, 1024, signal, 1, SignalOperation::add, next);
    if (!context.signal_wait_until(signal, Compare::greater_equal, round)) return;
  }
  context.quiet();
}

// A ring of puts until the world fails, or that file is there: rank 0 looks, so that all end in the same round.
int go_on(World& world, const std::string& end) {
  Heap heap(world, heap_options);
  ring::Rings rings(heap, ring_options);
  const auto data = heap.array<int>(2048);
  std::vector<char> ended(static_cast<std::size_t>(world.size()));
  do {
    const auto signal = heap.array<Signal>(1);
    launch(heap, {}, go_round, heap.handle(), signal.data(), data.data(), std::uint64_t{50});
    const char seen = world.rank() == 0 && std::filesystem::exists(end) ? 1 : 0;
    world.all_gather(&seen, ended.data(), sizeof seen);
  } while (ended[0] == 0);
  return 0;
}

int run(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "", more = count > 2 ? arguments[2] : "";
  const auto world = World::from_environment({.heap_bytes = std::size_t{32} << 20});
  return runtime::run_rank(*world, [&](World& its) {
    if (what == "suite" || what == "mixed_suite")
      return suite(its, what != "suite", more.empty() ? 1 : std::stoul(more));
    if (what == "teams") return teams(its);
    if (what == "far") return far(its, more);
    if (what == "ring") return go_on(its, more);
    return 2;
  });
}

}  // namespace
}  // namespace imbrex::shmem::test

int main(int count, char** arguments) { return imbrex::shmem::test::run(count, arguments); }
