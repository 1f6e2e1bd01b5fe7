// What is chosen for GPUs that no table knows.
#include <gtest/gtest.h>

#include "execute/cuda/refusal.hpp"
#include "imbrex/plan.hpp"
#include "ops/choose_gpu.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

Transport transport_behind_a_product(const GpuKind& gpus, int ranks, std::int64_t m, Type type = Type::bf16) {
  const Problem p{Operator::gemm_reduce_scatter, m, 8192, 28672, ranks, type};
  const Candidate chosen = choose_gpu_candidate(p, Strategy::sequential, {}, gpus);
  EXPECT_EQ(chosen.strategy, Strategy::sequential);
  return chosen.knobs.transport;
}

const GpuKind h100{"NVIDIA H100 80GB HBM3", 9}, a100{"NVIDIA A100-SXM4-80GB", 8};

TEST(ChooseGpuPlan, HopperWithoutATableTakesTheH200s) {
  for (const std::int64_t m : {16, 512, 8192}) {
    const Problem p{Operator::gemm_reduce_scatter, m, 8192, 28672, 4, Type::bf16};
    const Candidate h200 = choose_gpu_candidate(p, {}, {}, {"NVIDIA H200", 9}),
                    other = choose_gpu_candidate(p, {}, {}, h100);
    EXPECT_EQ(other.strategy, h200.strategy);
    EXPECT_EQ(other.knobs, h200.knobs);
  }
}

// Imbrex' own collectives of few rows are faster than NCCL's, where they run.
TEST(ChooseGpuPlan, OwnCollectivesBehindProductsOfFewRowsOnHopper) {
  EXPECT_EQ(transport_behind_a_product(h100, 8, 64), Transport::store);
  EXPECT_EQ(transport_behind_a_product(h100, 8, 64, Type::fp16), Transport::store);
  EXPECT_NE(transport_behind_a_product(h100, 8, 4096), Transport::store);
  EXPECT_NE(transport_behind_a_product(h100, 16, 64), Transport::store);
  EXPECT_NE(transport_behind_a_product(a100, 4, 64), Transport::store);
}

TEST(ChooseGpuPlan, EightBitOperandsAreGatheredByNccl) {
  const Problem p{Operator::all_gather_gemm, 64, 28672, 8192, 8, Type::e4m3};
  EXPECT_NE(choose_gpu_candidate(p, Strategy::sequential, {}, h100).knobs.transport, Transport::store);
}

// Choices are made for typical numbers of rows, and have to suit all others.
TEST(ChooseGpuPlan, ChoicesSuitAnyNumberOfRows) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 200; ++i) {
    const Problem p = test::random_problem(random, {.max_ranks = 16, .max_size = 1500, .e4m3 = true});
    const Candidate chosen = choose_gpu_candidate(p, {}, {}, i % 2 == 0 ? h100 : a100);
    const Plan plan = make_plan(p, chosen.strategy, chosen.knobs);
    EXPECT_FALSE(check(plan).has_value()) << test::describe({p, chosen.strategy, chosen.knobs});
    EXPECT_EQ(cuda::refusal_of_plan(plan), "") << test::describe({p, chosen.strategy, chosen.knobs});
  }
}

TEST(ChooseGpuPlan, ShardsOfAlikeRowsAreCutAlike) {
  const auto chosen = [](std::int64_t m) {
    return choose_gpu_candidate({Operator::all_gather_gemm, m, 57344, 8192, 8, Type::bf16}, {}, {}, h100);
  };
  const Candidate typical = chosen(8192);
  ASSERT_EQ(typical.strategy, Strategy::fused);
  ASSERT_GT(typical.knobs.comm_rows, 0);
  const std::int64_t pieces = 1024 / typical.knobs.comm_rows;
  for (const std::int64_t m : {6000, 8184, 8200, 11000}) {
    Candidate other = chosen(m);
    EXPECT_EQ(other.knobs.comm_rows, ((m + 7) / 8 + pieces - 1) / pieces) << m;
    other.knobs.comm_rows = typical.knobs.comm_rows;
    EXPECT_EQ(other.knobs, typical.knobs) << m;
  }
}

TEST(ChooseGpuPlan, AKindIsAsOldAsTheOldestOfItsGpus) {
  GpuSurvey survey;
  survey.gpus = {{"NVIDIA H100", "a", 0, 132, 9, 0}, {"NVIDIA A100", "b", 0, 108, 8, 0}};
  EXPECT_EQ(kind_of(survey).name, "NVIDIA H100");
  EXPECT_EQ(kind_of(survey).major, 8);
}

}  // namespace
}  // namespace imbrex
