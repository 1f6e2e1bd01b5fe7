// Tiles beside library collectives on GPUs: strategy signaled. With IMBREX_TEST_RANKS=processes and
// IMBREX_TEST_RANKS_PER_GPU=4 the ranks share a GPU, and NCCL takes each for a host; else one rank runs alone.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "execute/cuda/lanes/stream_execution.hpp"
#include "execute/cuda/refusal.hpp"
#include "gpu/gpu_case.hpp"
#include "gpu/libraries.hpp"
#include "gpu/ranks.hpp"
#include "gpu/skips.hpp"
#include "imbrex/error.hpp"
#include "plan/operand_buffers.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::GpuCase, test::Outcome, test::Random;

constexpr int ranks = 4;
constexpr Operator operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                  Operator::gemm_all_to_all};

#define NEEDS_SHARING                                                                                     \
  if (!test::ranks_are_processes() || test::ranks_per_gpu() == 1)                                         \
    GTEST_SKIP() << "IMBREX_TEST_RANKS=processes and IMBREX_TEST_RANKS_PER_GPU, more than 1, are wanted"; \
  NEEDS_GPUS(ranks)

std::size_t index(int i) { return static_cast<std::size_t>(i); }

// As many as asked for, else `at_once` under MPS and `in_turn` by time slices.
int rounds(int at_once, int in_turn) {
  const char* text = std::getenv("IMBREX_TEST_EPOCHS");
  return std::max(text != nullptr ? std::atoi(text) : test::mps_runs() ? at_once : in_turn, 2);
}

GpuCase a_case() {
  GpuCase c;
  c.options.heap_bytes = std::size_t{1} << 27;
  c.whole_numbers = true;
  c.wait_limit = 30;
  return c;
}

void expect_exact(const std::vector<Plan>& plans, const GpuCase& c) {
  for (const Plan& plan : plans) {
    ASSERT_FALSE(check(plan).has_value());
    ASSERT_EQ(cuda::refusal_of_plan(plan), "");
  }
  const std::vector<Outcome> outcomes = test::run_on_gpus(plans, c);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    SCOPED_TRACE(test::describe({plans[i].problem, plans[i].strategy, plans[i].knobs}));
    EXPECT_EQ(outcomes[i].code, 0) << outcomes[i].message;
    EXPECT_EQ(outcomes[i].worst, 0) << outcomes[i].message;
    EXPECT_EQ(outcomes[i].differing, 0) << outcomes[i].kernel;
    if (outcomes[i].code != 0) return;  // those behind it did not run
  }
}

// ------------------------------------------------------------------------------------------------ one rank alone

// A plan of one rank, with NCCL's collectives of one rank: tiles in two groups of rows, a sum for each.
Plan scatter_alone(Type type, int kept_free) {
  Plan plan = make_plan({Operator::gemm_all_reduce, 520, 256, 128, 1, type}, Strategy::signaled,
                        {.tile_m = 128, .tile_n = 128, .partial = type});
  Buffer partial = plan.buffers[plan::buffer_out];
  partial.name = "partial";
  partial.role = BufferRole::workspace;
  const int workspace = static_cast<int>(plan.buffers.size());
  plan.buffers.push_back(partial);
  RankPlan& rank = plan.ranks.front();
  const int done = rank.signals;
  rank.signals += 2;
  std::uint32_t counts[2] = {};
  const std::int64_t rows[] = {0, 256, 520};
  for (Queue& queue : rank.queues)
    for (Task& task : queue.tasks) {
      auto& tile = std::get<Tile>(task.work);
      for (Store& store : tile.stores) store.to.buffer = workspace;
      const int group = tile.a.row < rows[1] ? 0 : 1;
      task.posts.push_back({0, done + group});
      ++counts[group];
    }
  Queue library;
  library.engine = Engine::library;
  library.kept_free = kept_free;
  for (int g = 0; g < 2; ++g) {
    const Region from{0, workspace, rows[g], 0, rows[g + 1] - rows[g], 256};
    Region to = from;
    to.buffer = plan::buffer_out;
    library.tasks.push_back({Collective{CollectiveKind::all_reduce, g, from, to}, {{done + g, counts[g]}}, {}});
  }
  rank.queues.push_back(library);
  return plan;
}

// The other way round: rows of A are gathered, and tiles wait for them.
Plan gather_alone(Type type, int kept_free) {
  Plan plan = make_plan({Operator::all_gather_gemm, 520, 256, 128, 1, type}, Strategy::signaled,
                        {.tile_m = 128, .tile_n = 128});
  Buffer gathered = plan.buffers[plan::buffer_a];
  gathered.name = "gathered";
  gathered.role = BufferRole::workspace;
  const int workspace = static_cast<int>(plan.buffers.size());
  plan.buffers.push_back(gathered);
  RankPlan& rank = plan.ranks.front();
  const int ready = rank.signals;
  rank.signals += 2;
  const std::int64_t rows[] = {0, 256, 520};
  for (Queue& queue : rank.queues)
    for (Task& task : queue.tasks) {
      auto& tile = std::get<Tile>(task.work);
      tile.a.buffer = workspace;
      task.mate = 0;  // whose rows may come later
      task.waits.push_back({ready + (tile.a.row < rows[1] ? 0 : 1)});
    }
  Queue library;
  library.engine = Engine::library;
  library.kept_free = kept_free;
  for (int g = 0; g < 2; ++g) {
    const Region to{0, workspace, rows[g], 0, rows[g + 1] - rows[g], 128};
    Region from = to;
    from.buffer = plan::buffer_a;
    library.tasks.push_back({Collective{CollectiveKind::all_gather, g, from, to}, {}, {{0, ready + g}}});
  }
  rank.queues.push_back(library);
  return plan;
}

TEST(GpuSignaled, OneRankAlone) {
  NEEDS_GPUS(1);
  NEEDS_LIBRARIES;
  std::vector<Plan> plans;
  for (const Type type : {Type::fp16, Type::fp32})
    for (const int kept_free : {1, 2, 5, 16}) {
      plans.push_back(scatter_alone(type, kept_free));
      plans.push_back(gather_alone(type, kept_free));
    }
  plans.push_back(scatter_alone(Type::fp16, 0));  // behind the kernel
  GpuCase c = a_case();
  c.repeats = 3;
  c.queued = 40;  // more than may be
  c.replays = 100;
  expect_exact(plans, c);
}

TEST(GpuSignaled, OneRankAloneWithDelays) {
  NEEDS_GPUS(1);
  NEEDS_LIBRARIES;
  GpuCase c = a_case();
  c.options.testing.delays = 5;
  c.options.testing.max_delay = 2e-5;
  c.replays = 500;
  expect_exact({scatter_alone(Type::fp16, 2), gather_alone(Type::fp16, 2)}, c);
}

TEST(GpuSignaled, WhatFindsNoRoomIsRefused) {
  NEEDS_GPUS(1);
  NEEDS_LIBRARIES;
  Outcome outcome = test::run_on_gpus(gather_alone(Type::fp16, 0), a_case());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.message.find("keeps 0 SMs free"), std::string::npos) << outcome.message;
  outcome = test::run_on_gpus(gather_alone(Type::fp16, 10000), a_case());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.message.find("keeps 10000 SMs free (kept_free), and GPU"), std::string::npos) << outcome.message;
}

// ------------------------------------------------------------------------------------------- ranks that share a GPU

// Whole numbers whose sums over 128 of K an fp16 holds, whoever adds them.
Plan random_plan(Random& random, Operator op, Type type) {
  const auto size = [&](std::int64_t most, std::int64_t step) { return step * random.between(1, most / step); };
  const bool odd = type == Type::fp32 || random.chance(0.2);  // else the tensor-core kernels run
  Problem p{op, 0, 0, 0, ranks, type};
  p.m = op == Operator::gemm_all_reduce ? size(500, 1) : size(1000, ranks);
  p.n = op == Operator::all_gather_gemm ? size(1000, odd ? ranks : 8 * ranks) : size(400, odd ? 1 : 8);
  p.k = op == Operator::all_gather_gemm || op == Operator::gemm_all_to_all ? size(128, odd ? 1 : 8)
                                                                           : size(128, odd ? ranks : 8 * ranks);
  p.bias = random.chance(0.3);
  Knobs k;
  k.tile_m = k.tile_n = random.chance(0.5) ? 128 : 64;
  k.group = static_cast<int>(random.between(1, 5));
  k.partial = output_type(type);
  k.packed = op == Operator::gemm_all_reduce && random.chance(0.5);
  k.kept_free = static_cast<int>(random.between(2, 16));
  test::set_groups(random, p, k, 5);
  return make_plan(p, Strategy::signaled, k);
}

TEST(GpuSignaled, RandomPlansAreExact) {
  NEEDS_SHARING;
  NEEDS_LIBRARIES;
  Random random(test::seed_from_environment());
  std::vector<Plan> plans;
  for (int i = 0; i < test::cases(test::mps_runs() ? 25 : 2); ++i)
    for (const Operator op : operators)
      plans.push_back(random_plan(random, op, random.chance(0.7) ? Type::fp16 : Type::fp32));
  GpuCase c = a_case();
  c.replays = 2;
  expect_exact(plans, c);
}

TEST(GpuSignaled, GraphsWithDelays) {
  NEEDS_SHARING;
  NEEDS_LIBRARIES;
  GpuCase c = a_case();
  c.options.testing.delays = 33;
  c.options.testing.max_delay = 2e-5;
  c.replays = rounds(1000, 4);
  std::vector<Plan> plans;
  for (const Operator op : operators) {
    // Rows of tiles of a rank's part, or of all of M.
    const GroupSizes groups = op == Operator::gemm_all_reduce ? GroupSizes{3, 6} : GroupSizes{1, 2};
    plans.push_back(make_plan({op, 520, 256, 128, ranks, Type::fp16}, Strategy::signaled,
                              {.tile_m = 64, .tile_n = 64, .groups = groups, .kept_free = 8, .partial = Type::fp16}));
  }
  plans.push_back(make_plan(
      {Operator::gemm_all_reduce, 520, 256, 128, ranks, Type::fp16}, Strategy::signaled,
      {.tile_m = 64, .tile_n = 64, .groups = {5, 20, 11}, .packed = true, .kept_free = 8, .partial = Type::fp16}));
  expect_exact(plans, c);
}

// Beside plans of other strategies, as `run` has them.
TEST(GpuSignaled, SharesAnExecutorWithOtherPlans) {
  NEEDS_SHARING;
  NEEDS_LIBRARIES;
  const Problem p{Operator::gemm_reduce_scatter, 512, 256, 128, ranks, Type::fp32};
  const Plan signaled = make_plan(p, Strategy::signaled, {.groups = {1}, .kept_free = 4, .partial = Type::fp32}),
             sequential = make_plan(p, Strategy::sequential, {.partial = Type::fp32});
  expect_exact({signaled, sequential, signaled}, a_case());
}

// A process that ends between two calls: the others are told, and do not hang.
TEST(GpuSignaled, ALostProcessEndsTheOthers) {
  NEEDS_SHARING;
  NEEDS_LIBRARIES;
  for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_all_reduce}) {
    test::Trouble told;
    const auto begin = std::chrono::steady_clock::now();
    const int code = test::on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = 30}, [&](World& world) {
      const Plan plan = make_plan({op, 512, 512, 512, ranks, Type::fp16}, Strategy::signaled, {.kept_free = 8});
      CudaOptions options;
      options.heap_bytes = 1 << 26;
      const auto executor = make_cuda_executor(world, test::sharing(options));
      const auto execution = executor->prepare(plan);
      const cuda::RawMemory a = cuda::raw_memory(512 * 512 * 2), b = cuda::raw_memory(512 * 512 * 2),
                            out = cuda::raw_memory(512 * 512 * 2);
      execution->run({a.get(), b.get(), out.get()});
      world.barrier();
      if (world.rank() == 1) _exit(9);
      try {
        execution->run({a.get(), b.get(), out.get()});
      } catch (const Error& error) {
        told.add(error.what());
        throw;
      }
      return 0;
    });
    EXPECT_EQ(code, 3);
    EXPECT_EQ(told.list().size(), index(ranks - 1));
    for (const std::string& text : told.list()) EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(90));
  }
}

}  // namespace
}  // namespace imbrex
