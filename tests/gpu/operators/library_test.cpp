// Strategies with library collectives on GPUs: every element within its bound of a float64 reference, the same bits
// every time and from graphs; and waits that end.
#include <chrono>
#include <thread>

#include "execute/cuda/lanes/stream_execution.hpp"
#include "execute/cuda/refusal.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/libraries.hpp"
#include "gpu/harness/ranks.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::cases;
using test::expect_right;
using test::GpuCase;
using test::Outcome;
using test::Random;

constexpr Operator operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                  Operator::gemm_all_to_all};

// Sizes of every kind, odd ones too.
Problem random_problem(Random& random, Operator op, int ranks, Type type, std::int64_t most) {
  Problem p{op, 0, 0, 0, ranks, type};
  test::draw_sizes(
      p, [&](const auto*) { return ranks * random.between(1, most / ranks); },
      [&](const auto*) { return random.chance(0.2) ? random.between(1, 16) : random.between(1, most); });
  p.bias = random.chance(0.3);
  p.bias = p.bias && cuda::refusal_of_library_bias(p).empty();
  return p;
}

std::vector<Plan> random_plans(std::uint64_t seed, int ranks, std::int64_t most, int each,
                               const std::vector<Type>& types = {Type::bf16, Type::fp16, Type::fp32}) {
  Random random(seed);
  std::vector<Plan> plans;
  for (Operator op : operators)
    for (Strategy strategy : {Strategy::sequential, Strategy::decomposed})
      for (Type type : types)
        for (int i = 0; i < each; ++i) {
          Knobs k;
          k.partial = random.chance(0.7) ? output_type(type) : Type::fp32;
          k.chunks = static_cast<int>(random.between(2, 4));
          k.group = static_cast<int>(random.between(1, 9));
          Problem p = random_problem(random, op, ranks, type, most);
          test::set_type(random, p, type);
          // cuBLASLt takes e4m3 where all of its matrices' sides are multiples of 16.
          if (type == Type::e4m3) {
            const std::int64_t sixteens = 16 * ranks * k.chunks;
            for (std::int64_t* side : {&p.m, &p.n, &p.k}) *side = (*side + sixteens - 1) / sixteens * sixteens;
          }
          plans.push_back(make_plan(p, strategy, k));
        }
  return plans;
}

TEST(GpuLibrary, RandomProblemsOnTwo) {
  NEEDS_GPUS(2);
  NEEDS_LIBRARIES;
  expect_right(random_plans(test::seed_from_environment() + 2, 2, 700, cases(2)), {});
}

TEST(GpuLibrary, RandomProblemsOnFour) {
  NEEDS_GPUS(4);
  NEEDS_LIBRARIES;
  expect_right(random_plans(test::seed_from_environment() + 4, 4, 700, cases(2)), {});
}

TEST(GpuLibrary, Fp8) {
  NEEDS_GPUS(2);
  NEEDS_LIBRARIES;
  expect_right(random_plans(test::seed_from_environment() + 8, test::most_ranks(), 1500, cases(3), {Type::e4m3}), {});
}

// Copies in a graph of two epochs.
std::size_t copies_in_two_epochs(cuda::StreamExecution& execution, const Addresses& operands) {
  IMBREX_CUDA_TRY(cudaStreamBeginCapture(execution.stream(), cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < 2; ++i) execution.enqueue(operands);
  cudaGraph_t graph = nullptr;
  IMBREX_CUDA_TRY(cudaStreamEndCapture(execution.stream(), &graph));
  std::size_t count = 0, copies = 0;
  IMBREX_CUDA_TRY(cudaGraphGetNodes(graph, nullptr, &count));
  std::vector<cudaGraphNode_t> nodes(count);
  IMBREX_CUDA_TRY(cudaGraphGetNodes(graph, nodes.data(), &count));
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type{};
    IMBREX_CUDA_TRY(cudaGraphNodeGetType(node, &type));
    copies += type == cudaGraphNodeTypeMemcpy ? 1 : 0;
  }
  cudaGraphDestroy(graph);
  return copies;
}

// One copy sets all sources' scales apart, whatever the number of ranks and products.
TEST(GpuLibrary, GatheredScalesAreCopiedOnce) {
  NEEDS_GPUS(2);
  NEEDS_LIBRARIES;
  const int ranks = test::most_ranks();
  Problem p{Operator::all_gather_gemm, 256 * ranks, 128 * ranks, 256, ranks, Type::e4m3};
  p.scales = Scales::tensor;
  for (Strategy strategy : {Strategy::sequential, Strategy::decomposed}) {
    const Plan plan = make_plan(p, strategy, {.chunks = 4});
    const int code = test::on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = 20}, [&](World& world) {
      const auto executor = make_cuda_executor(world, test::sharing(CudaOptions{}));
      const auto execution = executor->prepare(plan);
      const RankShapes s = shapes_of(p);
      const auto bytes = [](const Extent& e, Type type) {
        return static_cast<std::size_t>(e.rows * e.cols) * size_of(type);
      };
      const cuda::RawMemory a = cuda::raw_memory(bytes(s.a, p.type)), b = cuda::raw_memory(bytes(s.b, p.type)),
                            out = cuda::raw_memory(bytes(s.out, output_type(p.type))),
                            scale = cuda::raw_memory(sizeof(float));
      const auto* scales = static_cast<const float*>(scale.get());
      const Addresses operands{a.get(), b.get(), out.get(), nullptr, scales, scales};
      execution->run(operands);
      EXPECT_EQ(copies_in_two_epochs(dynamic_cast<cuda::StreamExecution&>(*execution), operands), 2u)
          << name_of(strategy);
      EXPECT_THROW(execution->run({a.get(), b.get(), out.get(), nullptr, scales + 1, scales}), Error);
      world.barrier();
      return 0;
    });
    EXPECT_EQ(code, 0);
  }
}

TEST(GpuLibrary, GraphsReplayTheSameBits) {
  NEEDS_GPUS(2);
  NEEDS_LIBRARIES;
  const int ranks = test::most_ranks();
  std::vector<Plan> plans;
  for (Operator op : operators)
    for (Strategy strategy : {Strategy::sequential, Strategy::decomposed})
      for (Type partial : {Type::bf16, Type::fp32})
        plans.push_back(
            make_plan({op, 1024, 768, 512, ranks, Type::bf16}, strategy, {.chunks = 3, .partial = partial}));
  GpuCase c;
  c.replays = 100;
  expect_right(plans, c);
}

// More epochs than may be queued, on ranks that fall behind in turn.
TEST(GpuLibrary, ManyEpochsQueuedWithDelays) {
  NEEDS_GPUS(2);
  NEEDS_LIBRARIES;
  GpuCase c;
  c.options.testing.delays = 77;
  c.options.testing.max_delay = 2e-4;
  c.queued = 80;
  c.repeats = 2;
  std::vector<Plan> plans;
  for (Operator op : operators)
    for (Strategy strategy : {Strategy::sequential, Strategy::decomposed})
      plans.push_back(make_plan({op, 120, 88, 72, 2, Type::bf16}, strategy, {.chunks = 4}));
  expect_right(plans, c);
}

TEST(GpuLibrary, SharesAnExecutorWithFusedPlans) {
  NEEDS_GPUS(2);
  NEEDS_LIBRARIES;
  const Problem p{Operator::gemm_reduce_scatter, 512, 256, 256, 2, Type::bf16};
  const Plan fused = make_plan(p, Strategy::fused, {.transport = Transport::store}),
             sequential = make_plan(p, Strategy::sequential, {}), decomposed = make_plan(p, Strategy::decomposed, {});
  expect_right({fused, sequential, fused, decomposed, sequential}, {});
}

TEST(GpuLibrary, OneRank) {
  NEEDS_GPUS(1);
  NEEDS_LIBRARIES;
  std::vector<Plan> plans;
  for (Operator op : operators) plans.push_back(make_plan({op, 130, 70, 90, 1, Type::bf16}, Strategy::sequential, {}));
  expect_right(plans, {});
}

TEST(GpuLibrary, AKernelOfAnotherNameIsRefused) {
  NEEDS_GPUS(2);
  NEEDS_LIBRARIES;
  GpuCase c;
  c.options.kernel = "plain";
  const Outcome outcome =
      test::run_on_gpus(make_plan({Operator::gemm_all_reduce, 64, 64, 64, 2, Type::bf16}, Strategy::sequential, {}), c);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.message.find("no kernel named like 'plain'"), std::string::npos) << outcome.message;
}

// Rank 1 stays away from a collective, or is lost before it: rank 0 must end, and the GPUs be free again.
void expect_rank_0_ends(bool lost, const std::string& text) {
  constexpr double limit = 5;
  const Plan plan = make_plan({Operator::gemm_all_reduce, 512, 512, 512, 2, Type::bf16}, Strategy::decomposed, {});
  std::string message;
  double seconds = 0;
  const int code = run_threads(2, {.heap_bytes = 1 << 20, .wait_limit = limit}, [&](World& world) {
    const auto executor = make_cuda_executor(world);
    const auto execution = executor->prepare(plan);
    const cuda::RawMemory a = cuda::raw_memory(512 * 256 * 2), b = cuda::raw_memory(512 * 256 * 2),
                          out = cuda::raw_memory(512 * 512 * 2);
    execution->run({a.get(), b.get(), out.get()});
    world.barrier();
    if (world.rank() == 1) {
      if (lost) throw Error(ErrorCode::runtime_failure, "rank 1 is lost");
      for (;;) {
        world.throw_if_failed();
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    }
    const auto begin = std::chrono::steady_clock::now();
    try {
      execution->run({a.get(), b.get(), out.get()});
    } catch (const Error& error) {
      message = error.what();
      seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      throw;
    }
    return 0;
  });
  EXPECT_EQ(code, 3);
  EXPECT_NE(message.find(text), std::string::npos) << message;
  EXPECT_LT(seconds, limit + 5);
  const Outcome after = test::run_on_gpus(plan, {});
  EXPECT_EQ(after.code, 0) << after.message;
  EXPECT_LE(after.worst, 1);
}

TEST(GpuLibrary, ALateRankEndsAllPastTheLimit) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  NEEDS_LIBRARIES;
  expect_rank_0_ends(false, "rank 0 queue 1 task 0 (collective) waited longer than 5 s");
}

TEST(GpuLibrary, ALostRankEndsTheOthers) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  NEEDS_LIBRARIES;
  expect_rank_0_ends(true, "rank 1");
}

}  // namespace
}  // namespace imbrex
