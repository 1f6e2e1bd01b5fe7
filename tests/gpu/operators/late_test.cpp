// Ranks whose hosts come late to a call, or to a replay of one: the others' GPUs wait for them, and their hosts say so
// once, while the programs are in CUDA. IMBREX_TEST_RANKS=processes: so are ranks that are processes.
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "collectives/cuda/cuda_collectives.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/operators/operator_subject.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex {
namespace {

using Clock = std::chrono::steady_clock;
using test::Stream;
using test::Subject;

constexpr int late_rank = 1;
constexpr GemmShape shape{256, 256, 256, Type::bf16};

int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++found;
  return found;
}

void be_late(const World& world, double seconds) {
  if (world.rank() == late_rank) std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

class GpuLate : public testing::Test {
 protected:
  int run(const WorldOptions& options, const std::function<void(World&)>& body) {
    testing::internal::CaptureStderr();
    const int code = test::on_world(2, options, [&](World& world) {
      body(world);
      return 0;
    });
    said = testing::internal::GetCapturedStderr();
    return code;
  }

  // Calls and replays of an operator, two of each with a late rank.
  void expect_waited_for(Strategy strategy, Transport transport) {
    const WorldOptions options{.heap_bytes = 1 << 20, .wait_limit = 2, .entry_limit = 100};
    const int code = run(options, [&](World& world) {
      Subject subject(world, Operator::gemm_all_reduce, shape, test::options_of(strategy, transport, 0), false);
      const Stream stream(world);
      const auto call = [&](const std::string& what, double late, const std::function<void()>& queue) {
        subject.poison(stream);
        IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
        world.barrier();
        be_late(world, late);
        queue();
        IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));  // as programs do: no call of Imbrex looks
        subject.judge(what);
        world.barrier();
      };
      const auto enqueue = [&] { subject.call(stream); };
      call("the first call", 0, enqueue);
      call("a late call", 7, enqueue);
      call("a call", 0, enqueue);
      const cuda::Graph graph(stream, 2, enqueue);
      const auto replay = [&] { graph.launch(stream); };
      call("the first replay", 0, replay);
      call("a late replay", 7, replay);
      call("a replay", 0, replay);
      call("a late call after replays", 7, enqueue);
    });
    EXPECT_EQ(code, 0) << said;
    EXPECT_EQ(count(said, "imbrex: rank 0: rank 1 has not come to "), 3) << said;
    EXPECT_EQ(count(said, "; waiting up to 100 s\n"), 3) << said;
    EXPECT_EQ(count(said, "gemm_all_reduce M=256 N=256 K=256 bf16 over 2 ranks"), 3) << said;
    EXPECT_EQ(count(said, "imbrex: "), 3) << said;
  }

  std::string said;
};

TEST_F(GpuLate, RanksOfFusedPlansAreWaitedFor) {
  NEEDS_GPUS(2);
  expect_waited_for(Strategy::fused, Transport::store);
}

TEST_F(GpuLate, RanksOfPlansOfLibrariesAreWaitedFor) {
  NEEDS_GPUS(2);
#if defined(IMBREX_HAVE_LIBRARIES)
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed, Strategy::signaled})
    if (test::runs_here(strategy, Transport::push)) {
      SCOPED_TRACE(name_of(strategy));
      expect_waited_for(strategy, Transport::push);
    }
#else
  GTEST_SKIP() << "built without libraries";
#endif
}

TEST_F(GpuLate, RanksOfCollectivesAreWaitedFor) {
  NEEDS_GPUS(2);
  const WorldOptions options{.heap_bytes = 1 << 20, .wait_limit = 2, .entry_limit = 100};
  const int code = run(options, [&](World& world) {
    cuda::CudaCollectives collectives(world, test::select_gpu(world), test::sharing(cuda::CollectivesOptions{}));
    constexpr std::int64_t elements = 4096;
    const std::vector<float> ones(elements, 1);
    runtime::DeviceMemory in(elements * sizeof(float)), out(elements * sizeof(float));
    in.upload(ones.data());
    const Stream stream(world);
    const auto call = [&](double late, const std::function<void()>& queue) {
      IMBREX_CUDA_TRY(cudaMemsetAsync(out.get(), 0xff, elements * sizeof(float), stream));
      IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
      world.barrier();
      be_late(world, late);
      queue();
      IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
      std::vector<float> result(elements);
      out.download(result.data());
      EXPECT_EQ(result, std::vector<float>(elements, 2));
      world.barrier();
    };
    const auto sum = [&] { collectives.all_reduce(in.get(), out.get(), elements, Type::fp32, stream); };
    call(0, sum);
    call(7, sum);
    const cuda::Graph graph(stream, 1, sum);
    call(0, [&] { graph.launch(stream); });
    call(7, [&] { graph.launch(stream); });
  });
  EXPECT_EQ(code, 0) << said;
  EXPECT_EQ(count(said, "imbrex: rank 0: rank 1 has not come to collective call "), 2) << said;
  EXPECT_EQ(count(said, "imbrex: "), 2) << said;
}

TEST_F(GpuLate, ARankThatDoesNotComeEndsTheCallAtTheEntryLimit) {
  NEEDS_GPUS(2);
  const auto begin = Clock::now();
  const int code = run({.heap_bytes = 1 << 20, .wait_limit = 1, .entry_limit = 4}, [&](World& world) {
    Subject subject(world, Operator::gemm_all_reduce, shape, test::options_of(Strategy::fused, Transport::store, 0),
                    false);
    subject.call();
    world.barrier();
    be_late(world, 12);
    subject.call();
  });
  EXPECT_EQ(code, 3) << said;
  EXPECT_GE(Clock::now() - begin, std::chrono::seconds(4));
  EXPECT_GE(count(said, "waited longer than 4 s for "), 1) << said;
  EXPECT_GE(count(said, "; rank 1 has not begun it"), 1) << said;
}

TEST_F(GpuLate, ALimitThatIsSetHoldsForLateRanksToo) {
  NEEDS_GPUS(2);
  const int code = run({.heap_bytes = 1 << 20, .wait_limit = 2}, [&](World& world) {
    Subject subject(world, Operator::gemm_all_reduce, shape, test::options_of(Strategy::fused, Transport::store, 0),
                    false);
    subject.call();
    world.barrier();
    be_late(world, 10);
    subject.call();
  });
  EXPECT_EQ(code, 3) << said;
  EXPECT_GE(count(said, "waited longer than 2 s for "), 1) << said;
  EXPECT_EQ(count(said, "waiting up to"), 0) << said;
}

// The others' programs are in CUDA, and in no call of Imbrex.
TEST_F(GpuLate, ARankThatDiesEndsTheWaitAtOnce) {
  NEEDS_GPUS(2);
  if (!test::ranks_are_processes()) GTEST_SKIP() << "ranks of one process end together";
  for (const bool collective : {false, true}) {
    const auto begin = Clock::now();
    const int code = run({.heap_bytes = 1 << 20, .wait_limit = 2, .entry_limit = 300}, [&](World& world) {
      Subject subject(world, Operator::gemm_all_reduce, shape, test::options_of(Strategy::fused, Transport::store, 0),
                      false);
      cuda::CudaCollectives collectives(world, test::select_gpu(world), test::sharing(cuda::CollectivesOptions{}));
      runtime::DeviceMemory in(4096), out(4096);
      const Stream stream(world);
      const auto call = [&] {
        collective ? collectives.all_reduce(in.get(), out.get(), 1024, Type::fp32, stream) : subject.call(stream);
        IMBREX_CUDA_TRY(cudaStreamSynchronize(stream));
      };
      call();
      world.barrier();
      be_late(world, 5);
      if (world.rank() == late_rank) _exit(9);
      call();
      world.throw_if_failed();
    });
    EXPECT_EQ(code, 3) << said;
    EXPECT_LT(Clock::now() - begin, std::chrono::seconds(100));
    EXPECT_EQ(count(said, "rank 1 has not come to "), 1) << said;
    EXPECT_GE(count(said, ") was lost: "), 1) << said;
  }
}

// All have come, and a post is kept back.
TEST_F(GpuLate, ALostPostEndsTheCallAfterTheWaitLimit) {
  NEEDS_GPUS(2);
  Plan plan = make_plan({Operator::gemm_reduce_scatter, 512, 256, 256, 2, Type::bf16}, Strategy::fused,
                        {.transport = Transport::store});
  for (Task& task : plan.ranks[1].queues[0].tasks) task.posts.clear();
  const auto begin = Clock::now();
  const int code = run({.heap_bytes = 1 << 20, .wait_limit = 2, .entry_limit = 300}, [&](World& world) {
    CudaOptions options;
    options.heap_bytes = 1 << 26;
    const auto executor = make_cuda_executor(world, test::sharing(options));
    const auto execution = executor->prepare(plan);
    runtime::DeviceMemory a(1 << 20), b(1 << 20), out(1 << 20);
    execution->run({a.get(), b.get(), out.get()});
    // Rank 1 ends its epoch; in another it would wait for rank 0, which is late to that one.
    for (;;) {
      world.throw_if_failed();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  EXPECT_EQ(code, 3) << said;
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(100));
  EXPECT_GE(count(said, "waited longer than 2 s for signal"), 1) << said;
  EXPECT_EQ(count(said, "has not come to "), 0) << said;
}

}  // namespace
}  // namespace imbrex
