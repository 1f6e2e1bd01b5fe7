// Symmetric memory and groups for kernels that Imbrex does not know.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "execute/cuda/lanes/graph.hpp"
#include "gpu/collectives/collective_ranks.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/stream.hpp"
#include "gpu/shmem/token_ring.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex {
namespace {

using device::Group, device::Memory, device::MemoryOptions;
using test::Box, test::Stream, test::Trouble;

struct Ring {
  Memory memory;
  Box* own;
  Group group;
  Stream stream;

  Ring(World& world, const MemoryOptions& options)
      : memory(world, options),
        own(static_cast<Box*>(memory.allocate(sizeof(Box)))),
        group(memory.group(1,
                           [](const device::Fault& f) {
                             return "for the token of lap " + std::to_string(f.place[0]) + " in epoch " +
                                    std::to_string(f.epoch);
                           })),
        stream(world) {
    IMBREX_CUDA_TRY(test::load_pass_token());
    world.barrier();
  }

  void pass(std::uint32_t laps) { IMBREX_CUDA_TRY(test::pass_token(group, own, laps, stream)); }

  Box box() const {
    Box copy{};
    IMBREX_CUDA_TRY(cudaMemcpy(&copy, own, sizeof copy, cudaMemcpyDeviceToHost));
    return copy;
  }
};

MemoryOptions few_bytes() { return test::sharing(MemoryOptions{.bytes = std::size_t{1} << 20}); }

int run_ring(int ranks, double limit, const MemoryOptions& options, const std::function<void(World&, Ring&)>& body) {
  return test::on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = limit}, [&](World& world) {
    Ring ring(world, options);
    body(world, ring);
    return 0;
  });
}

// Called, and replayed: nothing in a launch changes.
TEST(GpuDeviceMemory, ATokenGoesRound) {
  NEEDS_GPUS(2);
  constexpr std::uint32_t laps = 3;
  for (const std::uint64_t pauses : {0, 5}) {
    const int ranks = test::most_ranks();
    MemoryOptions options = few_bytes();
    options.pauses = pauses;
    Trouble trouble;
    const int code = run_ring(ranks, 30, options, [&](World& world, Ring& ring) {
      const auto expect = [&](const char* what, std::uint64_t epochs) {
        ring.memory.finish(ring.stream);
        world.barrier();
        const Box box = ring.box();
        // Each rank's box holds what came last: rank 0's the whole, others' that of the ranks before them.
        const auto rank = static_cast<std::uint64_t>(world.rank()), all = static_cast<std::uint64_t>(world.size());
        const std::uint64_t token = rank == 0 ? epochs * laps * all : (epochs * laps - 1) * all + rank;
        if (box.token != token || box.came != epochs * laps)
          trouble.add(std::string(what) + ": rank " + std::to_string(rank) + " has token " + std::to_string(box.token) +
                      " after " + std::to_string(box.came) + " visits, expected " + std::to_string(token));
        world.barrier();
      };
      for (int i = 0; i < 5; ++i) ring.pass(laps);
      expect("calls", 5);
      const cuda::Graph graph(ring.stream, 1, [&] { ring.pass(laps); });
      for (int i = 0; i < 1000; ++i) graph.launch(ring.stream);
      expect("replays", 1005);
    });
    test::expect_none(code, trouble);
  }
}

// The last rank keeps away: every other one is told, by the message of the rank that waited for it, and no token is
// moved by the calls that are queued behind.
TEST(GpuDeviceMemory, AWaitIsBoundedAndEndsOnAllRanks) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  const int ranks = test::most_ranks();
  std::mutex lock;
  std::vector<std::string> said;
  std::atomic<int> ended = 0;
  const auto begin = std::chrono::steady_clock::now();
  run_ring(ranks, 0.5, few_bytes(), [&](World& world, Ring& ring) {
    ring.pass(2);
    ring.memory.finish(ring.stream);
    world.barrier();
    if (world.rank() + 1 < ranks) {
      for (int i = 0; i < 3; ++i) ring.pass(2);
      try {
        ring.memory.finish(ring.stream);
      } catch (const Error& error) {
        const std::lock_guard guard(lock);
        said.push_back(error.what());
      }
    }
    ++ended;
    for (int i = 0; ended < ranks && i < 2000; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    // In its first lap the token came as far as the last rank; no rank has moved it since.
    EXPECT_EQ(ring.box().came, world.rank() == 0 ? 2u : 3u) << world.rank();
    world.fail("the test is over");
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  ASSERT_EQ(said.size(), static_cast<std::size_t>(ranks - 1));
  for (const std::string& text : said) {
    EXPECT_NE(text.find("waited longer than 0.5 s for the token of lap 1 in epoch 1"), std::string::npos) << text;
    EXPECT_NE(text.find(" posts, saw "), std::string::npos) << text;
  }
}

TEST(GpuDeviceMemory, MemoryComesBackZeroed) {
  NEEDS_GPUS(2);
  EXPECT_EQ(test::on_world(2, {.heap_bytes = 1 << 20, .wait_limit = 20},
                           [&](World& world) {
                             Memory memory(world, few_bytes());
                             void* first = memory.allocate(4096);
                             const Group group = memory.group();
                             // A peer's part, as this rank maps it.
                             cuda::fill(device::at_rank(group, first, 1 - group.rank), 0xff, 4096);
                             IMBREX_CUDA_TRY(cudaDeviceSynchronize());
                             world.barrier();
                             std::uint32_t word = 0;
                             IMBREX_CUDA_TRY(cudaMemcpy(&word, first, sizeof word, cudaMemcpyDeviceToHost));
                             EXPECT_EQ(word, 0xffffffffu);
                             memory.release(first);
                             void* second = memory.allocate(4096);
                             EXPECT_EQ(second, first);
                             IMBREX_CUDA_TRY(cudaMemcpy(&word, second, sizeof word, cudaMemcpyDeviceToHost));
                             EXPECT_EQ(word, 0u);
                             EXPECT_THROW(memory.release(nullptr), Error);
                             EXPECT_THROW(memory.group(0), Error);
                             EXPECT_THROW(memory.allocate(std::size_t{1} << 40), Error);
                             memory.check();
                             return 0;
                           }),
            0);
}

TEST(GpuDeviceMemory, OptionsOutOfRangeAreRefused) {
  NEEDS_GPUS(1);
  test::on_world(1, {.heap_bytes = 1 << 20}, [&](World& world) {
    EXPECT_THROW(Memory(world, {.bytes = 0}), Error);
    EXPECT_THROW(Memory(world, {.ranks_per_gpu = 0}), Error);
    EXPECT_THROW(Memory(world, {.max_pause = 2}), Error);
    return 0;
  });
}

}  // namespace
}  // namespace imbrex
