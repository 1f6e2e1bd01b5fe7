// Tiles beside library collectives on GPUs: strategy signaled. With IMBREX_TEST_RANKS=processes and
// IMBREX_TEST_RANKS_PER_GPU=4 the ranks share a GPU, and NCCL takes each for a host; else one rank runs alone.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "execute/cuda/lanes/stream_execution.hpp"
#include "execute/cuda/refusal.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/libraries.hpp"
#include "gpu/harness/lost_rank.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/skips.hpp"
#include "imbrex/error.hpp"
#include "plan/operand_buffers.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::expect_exact, test::GpuCase, test::Outcome, test::Random;

constexpr int ranks = 4;
constexpr Operator operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                  Operator::gemm_all_to_all};

std::size_t index(int i) { return static_cast<std::size_t>(i); }

// As many as asked for, else `at_once` under MPS and `in_turn` by time slices.
int rounds(int at_once, int in_turn) {
  const char* text = std::getenv("IMBREX_TEST_EPOCHS");
  return std::max(text != nullptr ? std::atoi(text) : test::mps_runs() ? at_once : in_turn, 2);
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
  plans.push_back(scatter_alone(Type::fp16, 0));  // after the kernel
  GpuCase c = test::exact_case();
  c.repeats = 3;
  c.queued = 80;  // more than may be
  c.replays = 100;
  expect_exact(plans, c);
}

TEST(GpuSignaled, OneRankAloneWithDelays) {
  NEEDS_GPUS(1);
  NEEDS_LIBRARIES;
  GpuCase c = test::exact_case();
  c.options.testing.delays = 5;
  c.options.testing.max_delay = 2e-5;
  c.replays = 500;
  expect_exact({scatter_alone(Type::fp16, 2), gather_alone(Type::fp16, 2)}, c);
}

TEST(GpuSignaled, WhatFindsNoRoomIsRefused) {
  NEEDS_GPUS(1);
  NEEDS_LIBRARIES;
  Outcome outcome = test::run_on_gpus(gather_alone(Type::fp16, 0), test::exact_case());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.message.find("keeps 0 SMs free"), std::string::npos) << outcome.message;
  outcome = test::run_on_gpus(gather_alone(Type::fp16, 10000), test::exact_case());
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.message.find("keeps 10000 SMs free (kept_free), and GPU"), std::string::npos) << outcome.message;
}

// ------------------------------------------------------------------------------------------- ranks that share a GPU

// Sums of integers over 128 of K, which an fp16 holds, in any order of addition.
Plan random_plan(Random& random, Operator op, Type type) {
  const bool odd = type == Type::fp32 || random.chance(0.2);  // else the tensor-core kernels run
  Problem p{op, 0, 0, 0, ranks, type};
  test::set_type(random, p, type);
  const std::int64_t row = 16 / static_cast<std::int64_t>(size_of(type));  // the least of those kernels
  const auto size = [&](const std::int64_t* which, std::int64_t parts) {
    const std::int64_t step = parts * (odd || which == &p.m ? 1 : row),
                       most = which == &p.k                                      ? 128
                              : op == Operator::all_gather_gemm || which == &p.m ? 1000
                                                                                 : 400;
    return step * random.between(1, most / step);
  };
  test::draw_sizes(
      p, [&](const std::int64_t* which) { return size(which, ranks); },
      [&](const std::int64_t* which) { return size(which, 1); });
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
  NEEDS_SHARING(ranks);
  NEEDS_LIBRARIES;
  Random random(test::seed_from_environment());
  std::vector<Plan> plans;
  for (int i = 0; i < test::cases(test::mps_runs() ? 25 : 2); ++i)
    for (const Operator op : operators)
      plans.push_back(random_plan(random, op, random.chance(0.7) ? Type::fp16 : Type::fp32));
  GpuCase c = test::exact_case();
  c.replays = 2;
  expect_exact(plans, c);
}

// Sums of these types round.
TEST(GpuSignaled, RandomPlansOfTypesThatRoundAreRight) {
  NEEDS_SHARING(ranks);
  NEEDS_LIBRARIES;
  Random random(test::seed_from_environment());
  std::vector<Plan> plans;
  for (int i = 0; i < test::cases(test::mps_runs() ? 5 : 1); ++i)
    for (const Operator op : operators)
      for (const Type type : {Type::bf16, Type::e4m3}) plans.push_back(random_plan(random, op, type));
  GpuCase c = test::exact_case();
  c.whole_numbers = false;
  c.replays = 2;
  test::expect_right(plans, c);
}

TEST(GpuSignaled, GraphsWithDelays) {
  NEEDS_SHARING(ranks);
  NEEDS_LIBRARIES;
  GpuCase c = test::exact_case();
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
  NEEDS_SHARING(ranks);
  NEEDS_LIBRARIES;
  const Problem p{Operator::gemm_reduce_scatter, 512, 256, 128, ranks, Type::fp32};
  const Plan signaled = make_plan(p, Strategy::signaled, {.groups = {1}, .kept_free = 4, .partial = Type::fp32}),
             sequential = make_plan(p, Strategy::sequential, {.partial = Type::fp32});
  expect_exact({signaled, sequential, signaled}, test::exact_case());
}

// ------------------------------------------------------------------------------------------------ lost ranks

Plan plan_to_lose(Operator op) {
  return make_plan({op, 512, 512, 512, ranks, Type::fp16}, Strategy::signaled, {.kept_free = 8});
}

// A rank whose process ends, or that stands still: the others are told who, or what they waited for, and end.
class GpuLostRank : public testing::TestWithParam<std::tuple<Operator, test::LossCase::When>> {};

TEST_P(GpuLostRank, EndsTheOthersWhereItsProcessEnds) {
  NEEDS_SHARING(ranks);
  NEEDS_LIBRARIES;
  const auto [op, when] = GetParam();
  test::expect_others_told({plan_to_lose(op), test::LossCase::How::ends, when, 30});
}

TEST_P(GpuLostRank, EndsTheOthersWhereItStandsStill) {
  NEEDS_SHARING(ranks);
  NEEDS_LIBRARIES;
  const auto [op, when] = GetParam();
  test::expect_others_told({plan_to_lose(op), test::LossCase::How::stops, when, test::mps_runs() ? 3.0 : 8.0});
}

using When = test::LossCase::When;

std::string name_of_loss(const testing::TestParamInfo<std::tuple<Operator, When>>& info) {
  const auto [op, when] = info.param;
  constexpr const char* names[] = {"BeforeACall", "BeforeReplays", "InAReplay", "BetweenReplays"};
  return std::string(op == Operator::all_gather_gemm ? "Gather" : "AllReduce") + names[static_cast<int>(when)];
}

INSTANTIATE_TEST_SUITE_P(Signaled, GpuLostRank,
                         testing::Combine(testing::Values(Operator::all_gather_gemm, Operator::gemm_all_reduce),
                                          testing::Values(When::before_a_call, When::before_replays, When::in_a_replay,
                                                          When::between_replays)),
                         name_of_loss);

// Plans of libraries alone, whose replays end where a process does.
TEST(GpuSignaled, ReplaysOfLibrariesAloneEndWithAProcess) {
  NEEDS_SHARING(ranks);
  NEEDS_LIBRARIES;
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed})
    for (const When when : {When::before_replays, When::in_a_replay, When::between_replays})
      test::expect_others_told({make_plan({Operator::gemm_reduce_scatter, 512, 512, 512, ranks, Type::fp16}, strategy,
                                          {.partial = Type::fp16}),
                                test::LossCase::How::ends, when, 30, true});
}

// In a ring each rank waits for its neighbours, and what stops one of them stops all.
TEST(GpuSignaled, RingsEndWithARank) {
  NEEDS_SHARING(ranks);
  NEEDS_LIBRARIES;
  const Plan ring = make_plan({Operator::all_gather_gemm, 512, 512, 512, ranks, Type::fp16}, Strategy::decomposed, {});
  for (const When when : {When::before_a_call, When::in_a_replay}) {
    test::expect_others_told({ring, test::LossCase::How::ends, when, 30});
    test::expect_others_told({ring, test::LossCase::How::stops, when, test::mps_runs() ? 3.0 : 8.0});
  }
}

}  // namespace
}  // namespace imbrex
