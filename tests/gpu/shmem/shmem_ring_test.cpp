// Rings on GPUs: kernels post, threads of the hosts copy between PEs' memory meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gpu/harness/global_captures.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/stream.hpp"
#include "imbrex/shmem/rings.hpp"
#include "runtime/cuda/check.hpp"
#include "shmem/ring/gpu_parts.hpp"
#include "support/random_plan.hpp"

namespace imbrex::shmem::test {
namespace {

using imbrex::test::by_time_slices, imbrex::test::two_and_four;
using imbrex::test::SharedArray, imbrex::test::Stream, imbrex::test::Trouble;

constexpr WorldOptions world_options{.heap_bytes = std::size_t{16} << 20, .wait_limit = 30};
constexpr HeapOptions heap_options{.device = Device::cuda, .bytes = std::size_t{16} << 20};
constexpr ring::RingOptions ring_options{.contexts = 8, .slots = 64};

// Each so many cases are run: a copy of a few bytes takes microseconds here, and a case of many single elements a
// second.
std::size_t every(std::size_t usual) {
  const char* text = std::getenv("IMBREX_TEST_RING_SHARE");
  if (text == nullptr) return by_time_slices() ? usual * 8 : usual;
  return 100 / static_cast<std::size_t>(std::clamp(std::atoi(text), 1, 100));
}

struct Pe {
  explicit Pe(World& world)
      : heap(world, imbrex::test::sharing(heap_options)),
        gpu(imbrex::test::select_gpu(world)),
        stream(world),
        rings(heap, ring_options) {}
  CudaStream on() { return reinterpret_cast<CudaStream>(static_cast<cudaStream_t>(stream)); }

  Heap heap;
  int gpu;
  Stream stream;
  ring::Rings rings;
};

void expect_all(const std::vector<Case>& cases, std::size_t step) {
  for (const int pes : two_and_four()) {
    Trouble trouble;
    const int code = imbrex::test::on_world(pes, world_options, [&](World& world) {
      Pe pe(world);
      Bench bench(pe.heap, pe.on());
      const std::size_t ran = run_all(bench, cases, step, [&](const std::string& line) { trouble.add(line); });
      if (world.rank() == 0)
        std::cout << pes << " PEs: " << ran << " cases, " << pe.rings.counts().descriptors << " descriptors, "
                  << pe.rings.counts().laps << " laps" << std::endl;
      return 0;
    });
    imbrex::test::expect_none(code, trouble);
  }
}

TEST(GpuShmemRing, Moves) {
  NEEDS_GPUS(2);
  expect_all(moves_on_gpu_ring(), every(9));
}

TEST(GpuShmemRing, Calls) {
  NEEDS_GPUS(2);
  expect_all(calls_on_gpu_ring(), every(5));
}

class GpuShmemRingLitmus : public testing::TestWithParam<int> {};

TEST_P(GpuShmemRingLitmus, Holds) {
  NEEDS_GPUS(2);
  const auto what = static_cast<Litmus>(GetParam());
  const std::uint64_t rounds = by_time_slices() ? 10 : 500;
  for (const int pes : two_and_four())
    for (const bool own : {false, true}) {
      SharedArray<std::uint64_t> wrong(static_cast<std::size_t>(pes));
      const int code = imbrex::test::on_world(pes, world_options, [&](World& world) {
        Pe pe(world);
        Bench bench(pe.heap, pe.on());
        wrong[static_cast<std::size_t>(world.rank())] = run_litmus_on_gpu_ring(bench, what, rounds, own);
        world.barrier();
        return 0;
      });
      EXPECT_EQ(code, 0);
      for (const std::uint64_t one : wrong) EXPECT_EQ(one, 0u) << litmus_names[GetParam()] << ", " << pes << " PEs";
    }
}

INSTANTIATE_TEST_SUITE_P(All, GpuShmemRingLitmus, testing::Range(0, litmuses));

TEST(GpuShmemRing, RegisteredPutsComeWhole) {
  NEEDS_GPUS(2);
  const std::uint64_t rounds = by_time_slices() ? 10 : 2000;
  constexpr std::uint32_t count = 300;
  for (const int pes : two_and_four()) {
    Trouble trouble;
    const int code = imbrex::test::on_world(pes, world_options, [&](World& world) {
      Pe pe(world);
      const auto landing = pe.heap.array<std::uint64_t>(count), source = pe.heap.array<std::uint64_t>(count);
      const auto signals = pe.heap.array<Signal>(2);
      const auto wrong = pe.heap.array<std::uint64_t>(1);
      const std::uint32_t number =
          pe.rings.add({.there = landing.data(), .here = source.data(), .bytes = count * 8, .signal = signals.data()});
      queue_registered(pe.heap, pe.on(), number, landing.data(), source.data(), count, signals.data(), rounds,
                       wrong.data());
      pe.heap.finish(pe.on());
      std::uint64_t seen = 0;
      pe.heap.read(&seen, wrong.data(), 8, world.rank());
      if (seen != 0) trouble.add("PE " + std::to_string(world.rank()) + ": " + std::to_string(seen) + " wrong words");
      world.barrier();
      return 0;
    });
    imbrex::test::expect_none(code, trouble);
  }
}

// PE 0's host captures while the threads of both PEs copy for kernels that wait.
TEST(GpuShmemRing, CapturesOfOtherThreadsGoOn) {
  NEEDS_GPUS(2);
  const std::uint64_t puts = by_time_slices() ? 100 : 30'000;
  const int captures = by_time_slices() ? 100 : 1000;
  constexpr std::uint32_t count = 300;
  Trouble trouble;
  const int code = imbrex::test::on_world(2, world_options, [&](World& world) {
    Pe pe(world);
    const auto landing = pe.heap.array<std::uint64_t>(count), source = pe.heap.array<std::uint64_t>(count);
    const auto signals = pe.heap.array<Signal>(2);
    const auto wrong = pe.heap.array<std::uint64_t>(1);
    const std::uint32_t number =
        pe.rings.add({.there = landing.data(), .here = source.data(), .bytes = count * 8, .signal = signals.data()});
    imbrex::test::GlobalCaptures capturing;
    std::mt19937_64 random(imbrex::test::seed_from_environment());
    world.barrier();
    queue_registered(pe.heap, pe.on(), number, landing.data(), source.data(), count, signals.data(), puts,
                     wrong.data());
    world.barrier();  // from here on until the next one the other PE's host asks nothing
    if (world.rank() == 0) {
      const std::uint64_t before = pe.rings.counts().descriptors;
      for (int i = 0; i < captures; ++i) {
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
        capturing.once(random, std::chrono::microseconds(200));
        if (i % 100 == 99) capturing.judge();
      }
      std::cout << pe.rings.counts().descriptors - before << " puts meanwhile" << std::endl;
      if (pe.rings.counts().descriptors < before + 100 && !by_time_slices())
        trouble.add("the puts were over before the captures");
    }
    world.barrier();
    pe.heap.finish(pe.on());
    std::uint64_t seen = 0;
    pe.heap.read(&seen, wrong.data(), 8, world.rank());
    if (seen != 0) trouble.add("PE " + std::to_string(world.rank()) + ": " + std::to_string(seen) + " wrong words");
    world.barrier();
    return 0;
  });
  imbrex::test::expect_none(code, trouble);
}

TEST(GpuShmemRing, AHostileDescriptorEndsAllPEsByName) {
  NEEDS_GPUS(2);
  Trouble trouble;
  SharedArray<int> told(2);
  imbrex::test::on_world(2, world_options, [&](World& world) {
    Pe pe(world);
    const auto signal = pe.heap.array<Signal>(1);
    world.barrier();
    try {
      queue_hostile(pe.heap, pe.on(), signal.data());
      pe.heap.finish(pe.on());
      trouble.add("rank " + std::to_string(world.rank()) + " was told nothing");
    } catch (const Error& error) {
      if (std::string(error.what()).find("a template that is not registered") == std::string::npos)
        trouble.add("rank " + std::to_string(world.rank()) + " was told " + error.what());
      told[static_cast<std::size_t>(world.rank())] = 1;
      throw;
    }
    return 0;
  });
  imbrex::test::expect_none(0, trouble);
  EXPECT_EQ(told[0] + told[1], 2);
}

}  // namespace
}  // namespace imbrex::shmem::test
