// Sparse triangular systems on GPUs: the bits of the CPU, within the bounds of a serial solution; graphs; waits.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "apps/sparse/generate.hpp"
#include "base/cuda_check.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/stream.hpp"
#include "imbrex/error.hpp"
#include "sparse/random_solve.hpp"
#include "support/random_plan.hpp"

namespace imbrex::apps::sparse {
namespace {

using test::RandomSolve, test::Trouble;

constexpr WorldOptions options{.heap_bytes = std::size_t{1} << 28, .wait_limit = 20};

// The default stream of a GPU is one for all threads of a process: solves that wait for each other would be in a row.
bool threads_share() { return test::ranks_per_gpu() > 1 && !test::ranks_are_processes(); }

int expect_right(World& world, const RandomSolve& subject, Trouble& trouble) {
  test::select_gpu(world);
  const test::Stream own(world);
  const auto stream = threads_share() ? reinterpret_cast<CudaStream>(static_cast<cudaStream_t>(own)) : nullptr;
  const std::string why = test::fault_of(world, subject, Device::cuda, test::ranks_per_gpu(), stream);
  if (!why.empty()) trouble.add(subject.text(world.size()) + ": " + why);
  return why.empty() ? 0 : 1;
}

TEST(GpuSparseSolve, RandomSystems) {
  NEEDS_GPUS(1);
  const std::uint64_t seed = test::seed_from_environment();
  for (const int pes : test::rank_counts(1))
    for (int i = 0; i < test::cases(20); ++i) {
      const RandomSolve subject = test::random_solve(seed + static_cast<std::uint64_t>(100 * pes + i), 3000);
      Trouble trouble;
      const int code =
          test::on_world(pes, options, [&](World& world) { return expect_right(world, subject, trouble); });
      test::expect_none(code, trouble);
      if (testing::Test::HasFailure()) return;  // each may take as long as a wait may
    }
}

TEST(GpuSparseSolve, EveryKind) {
  NEEDS_GPUS(1);
  for (const int pes : test::rank_counts(1))
    for (const Kind kind : {Kind::grid, Kind::banded, Kind::power_law, Kind::block}) {
      RandomSolve subject{
          1, triangular_of(generate(kind, kind == Kind::banded ? 5'000 : 100'000, 1), Part::whole, pes % 2 == 0)};
      if (kind == Kind::power_law) subject.sharing = Sharing::cyclic, subject.block = 64;
      Trouble trouble;
      const int code =
          test::on_world(pes, options, [&](World& world) { return expect_right(world, subject, trouble); });
      test::expect_none(code, trouble);
      if (testing::Test::HasFailure()) return;
    }
}

// Two solves in a graph, replayed with other right-hand sides: as those that the host launches.
int expect_replays(World& world, const RandomSolve& subject) {
  test::select_gpu(world);
  const test::Analysed analysed(world, subject);
  shmem::Heap heap(world, {.device = Device::cuda,
                           .bytes = 2 * Solver<double>::heap_bytes(analysed.schedule, 1) + (1 << 16),
                           .ranks_per_gpu = test::ranks_per_gpu()});
  Solver<double> replayed(heap, analysed.schedule, {}), launched(heap, analysed.schedule, {});
  const test::Stream stream(world);
  const auto on = reinterpret_cast<CudaStream>(static_cast<cudaStream_t>(stream));
  const auto meet = [&] {
    if (threads_share()) world.barrier();
  };
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  IMBREX_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  replayed.enqueue(on);
  replayed.enqueue(on);
  IMBREX_CUDA_TRY(cudaStreamEndCapture(stream, &graph));
  IMBREX_CUDA_TRY(cudaGraphInstantiate(&executable, graph, 0));
  IMBREX_CUDA_TRY(cudaGraphUpload(executable, stream));
  IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
  test::meet_if_sharing(world);
  int wrong = 0;
  const std::size_t rows = analysed.schedule.rows.size();
  for (int replay = 0; replay < 20; ++replay) {
    std::vector<double> right(rows);
    for (std::size_t i = 0; i < rows; ++i)
      right[i] = static_cast<double>((analysed.schedule.rows[i] * 7 + static_cast<std::uint32_t>(replay)) % 13) - 6;
    replayed.set_right(right), launched.set_right(right);
    meet();  // copies wait for all that runs on the GPU
    IMBREX_CUDA_TRY(cudaGraphLaunch(executable, stream));
    heap.finish(on);
    launched.enqueue(on);
    heap.finish(on);
    meet();
    wrong += replayed.result(world.rank(), rows) != launched.result(world.rank(), rows);
  }
  world.barrier();
  IMBREX_CUDA_TRY(cudaGraphExecDestroy(executable));
  IMBREX_CUDA_TRY(cudaGraphDestroy(graph));
  return wrong == 0 ? 0 : 1;
}

TEST(GpuSparseSolve, GraphsReplay) {
  NEEDS_GPUS(1);
  for (const int pes : test::rank_counts(1)) {
    RandomSolve subject{1, triangular_of(generate(Kind::grid, 20'000, 1), Part::whole, false)};
    EXPECT_EQ(test::on_world(pes, options, [&](World& world) { return expect_replays(world, subject); }), 0);
  }
}

TEST(GpuSparseSolve, WaitsPastTheirLimitAreNamed) {
  NEEDS_GPUS(2);
  RandomSolve subject{1, triangular_of(generate(Kind::banded, 300, 1), Part::whole, false)};
  const WorldOptions brief{.heap_bytes = std::size_t{1} << 26, .wait_limit = 5};  // processes may come seconds apart
  Trouble trouble;
  const int code = test::on_world(2, brief, [&](World& world) {
    test::select_gpu(world);
    const test::Analysed analysed(world, subject);
    shmem::Heap heap(world,
                     {.device = Device::cuda, .bytes = std::size_t{1} << 20, .ranks_per_gpu = test::ranks_per_gpu()});
    Solver<double> solver(heap, analysed.schedule, {});
    solver.set_right(std::vector<double>(analysed.schedule.rows.size(), 1.0));
    try {
      if (world.rank() == 1) solver.solve();  // PE 0, whose rows it needs, does not, nor does it wait at a barrier
      for (int i = 0; i < 3000; ++i) {
        world.throw_if_failed();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    } catch (const Error& error) {
      const std::string said = error.what();
      if (said.find("waited longer than 5 s") == std::string::npos) trouble.add(said);
      return 0;
    }
    trouble.add("nothing was refused");
    return 0;
  });
  test::expect_none(code, trouble);
}

}  // namespace
}  // namespace imbrex::apps::sparse
