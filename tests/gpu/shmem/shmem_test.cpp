// OpenSHMEM in kernels on GPUs: the suite of tests/shmem, litmus tests, replays, and PEs that are lost.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include "execute/cuda/lanes/graph.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/skips.hpp"
#include "gpu/harness/stream.hpp"
#include "runtime/cuda/check.hpp"
#include "shmem/gpu_parts.hpp"

namespace imbrex::shmem::test {
namespace {

using imbrex::test::by_time_slices, imbrex::test::two_and_four;
using imbrex::test::SharedArray, imbrex::test::Stream, imbrex::test::Trouble;

constexpr WorldOptions world_options{.heap_bytes = std::size_t{16} << 20, .wait_limit = 30};

struct Pe {
  Pe(World& world, const HeapOptions& options)
      : heap(world, imbrex::test::sharing(options)), gpu(imbrex::test::select_gpu(world)), stream(world) {}
  CudaStream on() { return reinterpret_cast<CudaStream>(static_cast<cudaStream_t>(stream)); }

  Heap heap;
  int gpu;
  Stream stream;
};

constexpr HeapOptions heap_options{
    .device = Device::cuda, .bytes = std::size_t{16} << 20, .pauses = 5, .max_pause = 4e-6};

// Each `every`th case.
void expect_all(const std::vector<Case>& cases, int pes, std::size_t every) {
  Trouble trouble;
  const int code = imbrex::test::on_world(pes, world_options, [&](World& world) {
    Pe pe(world, heap_options);
    Bench bench(pe.heap, pe.on());
    const std::size_t ran = run_all(bench, cases, every, [&](const std::string& line) { trouble.add(line); });
    if (world.rank() == 0) std::cout << pes << " PEs: " << ran << " cases" << std::endl;
    return 0;
  });
  imbrex::test::expect_none(code, trouble);
}

void expect_all(const std::vector<Case>& cases, std::size_t every_by_slices) {
  for (const int pes : two_and_four()) expect_all(cases, pes, by_time_slices() ? every_by_slices : 1);
}

TEST(GpuShmem, HasItsCases) {
  NEEDS_GPUS(1);
  EXPECT_EQ(few_moves_on_gpu().size(), 1341u);
  EXPECT_EQ(more_moves_on_gpu().size(), 1407u);
  EXPECT_EQ(bulk_moves_on_gpu().size(), 491u);
  EXPECT_EQ(calls_on_gpu().size(), 592u);
}

// Alone: nothing waits for another kernel, so that compute-sanitizer may watch.
TEST(GpuShmem, OnePe) {
  NEEDS_GPUS(1);
  const char* text = std::getenv("IMBREX_TEST_GPU_CASES");  // of each hundred
  const int share = text != nullptr ? std::clamp(std::atoi(text), 1, 100) : 100;
  for (const auto& cases : {calls_on_gpu(), few_moves_on_gpu(), more_moves_on_gpu(), bulk_moves_on_gpu()})
    expect_all(cases, 1, static_cast<std::size_t>(100 / share));
}

TEST(GpuShmem, Calls) {
  NEEDS_GPUS(2);
  expect_all(calls_on_gpu(), 11);
}

TEST(GpuShmem, Moves) {
  NEEDS_GPUS(2);
  expect_all(few_moves_on_gpu(), 17);
}

TEST(GpuShmem, MovesByOtherGroups) {
  NEEDS_GPUS(2);
  expect_all(more_moves_on_gpu(), 17);
}

TEST(GpuShmem, MovesByTheBulkEngine) {
  NEEDS_GPUS(2);
  expect_all(bulk_moves_on_gpu(), 17);
}

// What a PE and its peers see of one litmus test: whether a wait gave up, and how often what must not be.
void expect_litmus(Litmus what, bool ordered, bool reordering) {
  for (const int pes : two_and_four()) {
    // By time slices a round takes as long as thousands elsewhere.
    const std::uint64_t rounds = by_time_slices() ? 40 : 10000;
    SharedArray<std::uint64_t> wrong(static_cast<std::size_t>(pes));
    const int code = imbrex::test::on_world(pes, world_options, [&](World& world) {
      Pe pe(world, heap_options);
      Bench bench(pe.heap, pe.on());
      std::uint64_t& own = wrong[static_cast<std::size_t>(world.rank())];
      // What must be seen may need more than one run.
      for (int run = 0; run < (ordered ? 1 : 3) && own != none; ++run) {
        const std::uint64_t one = run_litmus_on_gpu(bench, what, rounds, ordered, reordering);
        own = one == none ? none : own + one;
        world.barrier();
      }
      return 0;
    });
    EXPECT_EQ(code, 0);
    std::uint64_t all = 0;
    for (const std::uint64_t one : wrong) {
      EXPECT_NE(one, none) << "a wait gave up";
      all += one;
    }
    std::cout << litmus_names[static_cast<int>(what)] << (ordered ? ", ordered" : ", not ordered")
              << (reordering ? ", reordering" : "") << ", " << pes << " PEs: " << all << " of " << rounds << "\n";
    if (ordered)
      EXPECT_EQ(all, 0u);
    else
      EXPECT_NE(all, 0u);
  }
}

class GpuShmemLitmus : public testing::TestWithParam<int> {};

TEST_P(GpuShmemLitmus, Holds) {
  NEEDS_GPUS(2);
  expect_litmus(static_cast<Litmus>(GetParam()), true, false);
}

TEST_P(GpuShmemLitmus, HoldsWhereTransportsReorder) {
  NEEDS_GPUS(2);
  expect_litmus(static_cast<Litmus>(GetParam()), true, true);
}

TEST_P(GpuShmemLitmus, CanFail) {
  NEEDS_GPUS(2);
  if (by_time_slices()) GTEST_SKIP() << "readers that take turns with writers do not overlap";
  expect_litmus(static_cast<Litmus>(GetParam()), false, true);
}

INSTANTIATE_TEST_SUITE_P(All, GpuShmemLitmus, testing::Range(0, litmuses));

// A ring of put_signal, a barrier and a sum in one graph.
TEST(GpuShmem, TenThousandReplays) {
  NEEDS_GPUS(2);
  const int replays = by_time_slices() ? 20 : 10000;
  for (const int pes : two_and_four()) {
    Trouble trouble;
    const int code = imbrex::test::on_world(pes, world_options, [&](World& world) {
      Pe pe(world, heap_options);
      auto* own = static_cast<Replayed*>(pe.heap.allocate(sizeof(Replayed)));
      queue_replayed(pe.heap, pe.on(), own);
      pe.heap.finish(pe.on());
      world.barrier();
      const cuda::Graph graph(pe.stream, 1, [&] { queue_replayed(pe.heap, pe.on(), own); });
      world.barrier();
      for (int i = 0; i < replays; ++i) {
        graph.launch(pe.stream);
        if (i % 100 == 99) pe.heap.finish(pe.on());
      }
      pe.heap.finish(pe.on());
      Replayed copy{};
      pe.heap.read(&copy, own, sizeof copy, world.rank());
      if (copy.wrong != 0 || copy.round != static_cast<std::uint64_t>(replays) + 1)
        trouble.add("PE " + std::to_string(world.rank()) + ": " + std::to_string(copy.wrong) + " wrong in " +
                    std::to_string(copy.round) + " rounds");
      world.barrier();
      return 0;
    });
    imbrex::test::expect_none(code, trouble);
  }
}

TEST(GpuShmem, CheckedBuildsNameWhatIsWrong) {
  NEEDS_GPUS(2);
  for (int what = 0; what < misuses_on_gpu(); ++what) {
    Trouble trouble;
    SharedArray<int> told(2);
    imbrex::test::on_world(2, world_options, [&](World& world) {
      Pe pe(world, heap_options);
      auto* box = static_cast<std::uint64_t*>(pe.heap.allocate(64));
      world.barrier();
      try {
        run_misuse_on_gpu(pe.heap, pe.on(), what, box);
        trouble.add("misuse " + std::to_string(what) + ": rank " + std::to_string(world.rank()) + " was told nothing");
      } catch (const Error& error) {
        const std::string said = error.what();
        if (said.find(misuse_words_of(what)) == std::string::npos)
          trouble.add("misuse " + std::to_string(what) + ": rank " + std::to_string(world.rank()) + " was told " +
                      said);
        told[static_cast<std::size_t>(world.rank())] = 1;
        throw;
      }
      return 0;
    });
    imbrex::test::expect_none(0, trouble);
    EXPECT_EQ(told[0] + told[1], 2) << what;
  }
}

enum class Loss { killed, fails, stays_away };

// PE 1 is lost, the others wait for it: they are told, in time.
void expect_told(Loss loss, double limit, const std::string& wanted) {
  const int pes = two_and_four().back();
  Trouble trouble;
  SharedArray<int> told(static_cast<std::size_t>(pes));
  WorldOptions options = world_options;
  options.wait_limit = limit;
  const auto begin = std::chrono::steady_clock::now();
  const int code = imbrex::test::on_world(pes, options, [&](World& world) {
    Pe pe(world, heap_options);
    auto* signal = static_cast<Signal*>(pe.heap.allocate(sizeof(Signal)));
    world.barrier();
    if (world.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));  // the others' kernels wait by now
      if (loss == Loss::killed) raise(SIGKILL);
      if (loss == Loss::fails) throw Error(ErrorCode::runtime_failure, "PE 1 had enough");
      for (;;) {
        world.throw_if_failed();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    }
    try {
      queue_lonely(pe.heap, pe.on(), signal);
      pe.heap.finish(pe.on());
      trouble.add("rank " + std::to_string(world.rank()) + " was told nothing");
    } catch (const Error& error) {
      if (std::string(error.what()).find(wanted) == std::string::npos)
        trouble.add("rank " + std::to_string(world.rank()) + " was told " + error.what());
      told[static_cast<std::size_t>(world.rank())] = 1;
      throw;
    }
    return 0;
  });
  EXPECT_EQ(code, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
  imbrex::test::expect_none(0, trouble);
  for (int rank = 0; rank < pes; ++rank)
    EXPECT_EQ(told[static_cast<std::size_t>(rank)], rank == 1 ? 0 : 1) << "rank " << rank;
}

TEST(GpuShmem, APeThatIsKilledEndsTheOthers) {
  NEEDS_GPUS(2);
  if (!imbrex::test::ranks_are_processes() || imbrex::test::mps_runs())
    GTEST_SKIP() << "a process is to be killed, and MPS would take the others with it";
  expect_told(Loss::killed, 30, "rank 1");
}

TEST(GpuShmem, APeThatFailsEndsTheOthers) {
  NEEDS_GPUS(2);
  if (!imbrex::test::ranks_are_processes() && imbrex::test::ranks_per_gpu() > 1)
    GTEST_SKIP() << "a thread whose heap ends waits for the GPU, and so for its peers' kernels, before it can say why";
  expect_told(Loss::fails, 30, "PE 1 had enough");
}

TEST(GpuShmem, APeThatStaysAwayEndsTheOthers) {
  NEEDS_GPUS(2);
  expect_told(Loss::stays_away, 2, "waited longer than 2 s");
}

}  // namespace
}  // namespace imbrex::shmem::test
