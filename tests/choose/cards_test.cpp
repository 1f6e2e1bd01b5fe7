// What is known of kinds of GPUs, and what is chosen where nothing is.
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

#include "choose/card.hpp"
#include "choose/choose_gpu.hpp"
#include "choose/kernel_tiles.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/tables/table_survey.hpp"
#include "imbrex/plan.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

// Nothing was measured on other GPUs, of Hopper or not, nor on unlike ones together: an operator does there what users
// had before, cuBLAS and NCCL, and runs no product of Imbrex' own on trust, except what libraries do not compute.
TEST(Cards, OtherGpusKeepWhatUsersHave) {
  test::Random random(test::seed_from_environment());
  int others = 0, plain = 0;
  for (int i = 0; i < 600; ++i) {
    Problem p = test::random_problem(random, {.max_ranks = 8, .max_size = 3000, .bias = true, .e4m3 = true});
    if (i % 3 != 0) p.n = 64 * p.ranks * (p.n % 64 + 1), p.k = 64 * p.ranks * (p.k % 64 + 1);
    const choose::GpuKind gpus = random.one_of<choose::GpuKind>({{"NVIDIA A100-SXM4-80GB", 8},
                                                                 {"NVIDIA H20", 9},
                                                                 {"NVIDIA H100 PCIe", 9},
                                                                 {"NVIDIA H800", 9},
                                                                 {"NVIDIA H100 80GB HBM3 and NVIDIA H200", 9},
                                                                 {"NVIDIA H100 80GB HBM3 MIG 3g.40gb", 9},
                                                                 {"NVIDIA L40S", 8},
                                                                 {"NVIDIA GeForce RTX 4090", 8},
                                                                 {"NVIDIA B200", 10},
                                                                 {"NVIDIA B300 SXM6 AC", 10},
                                                                 {"NVIDIA GeForce RTX 5090", 12}});
    const plan::Candidate chosen = choose::choose_gpu_candidate(p, {}, {}, gpus);
    SCOPED_TRACE(gpus.name + ": " + test::describe({p, chosen.strategy, chosen.knobs}));
    if (!cuda::refusal_of_library_bias(p).empty() || (p.type == Type::e4m3 && !cuda::refusal_of_tma(p).empty())) {
      EXPECT_EQ(chosen.strategy, Strategy::fused);
      ++others;
      continue;
    }
    // Before 8.9 there are no 8-bit tensor cores.
    choose::GpuKind older = gpus;
    older.fp8 = false;
    const bool none = p.type == Type::e4m3;
    plain += none;
    EXPECT_EQ(choose::choose_gpu_candidate(p, {}, {}, older).strategy, none ? Strategy::fused : Strategy::sequential);
    EXPECT_EQ(chosen.strategy, Strategy::sequential);
    EXPECT_NE(chosen.knobs.transport, Transport::store);
    EXPECT_NE(choose::choose_gpu_candidate(p, {}, {}, gpus, parse_codec_pair("int8")).strategy, Strategy::fused);
  }
  EXPECT_LT(others, 300);
  EXPECT_GT(plain, 10);
}

// A card is known by its own constants and records, and by those of the card that its machine file names.
TEST(Cards, CardsHaveTheirOwnConstants) {
  const auto machine_of = [](const std::string& gpu) { return choose::card_of(gpu).machine(Type::bf16, true).name; };
  EXPECT_EQ(machine_of("NVIDIA H100 80GB HBM3"), "4xh100");
  EXPECT_EQ(machine_of("NVIDIA H200"), "4xh200");
  EXPECT_EQ(machine_of("NVIDIA A100-SXM4-80GB"), "a100-nvlink-8");
  const auto known = [](const std::string& gpu) {
    std::vector<std::string> names;
    for (const choose::KnownPlans* plans : choose::card_of(gpu).known()) names.push_back(plans->records().gpu);
    return names;
  };
  EXPECT_EQ(known("NVIDIA H100 80GB HBM3"), (std::vector<std::string>{"NVIDIA H100 80GB HBM3", "NVIDIA H200"}));
  EXPECT_EQ(known("NVIDIA H200"), (std::vector<std::string>{"NVIDIA H200"}));
  EXPECT_EQ(known("NVIDIA H20"), (std::vector<std::string>{"NVIDIA H20"}));
  for (const char* gpu : {"NVIDIA H100 80GB HBM3", "NVIDIA H200"}) EXPECT_TRUE(choose::card_of(gpu).is_measured());
  for (const char* gpu : {"NVIDIA A100-SXM4-80GB", "NVIDIA H800", "NVIDIA H20", "", "NVIDIA"})
    EXPECT_FALSE(choose::card_of(gpu).is_measured()) << gpu;
  // Only tiles that kernels compute; of Imbrex' own collectives none before Hopper.
  for (const bool hopper : {true, false}) {
    const Machine& machine = choose::card_of("NVIDIA H200").machine(Type::bf16, hopper);
    for (const TileRate& t : machine.tiles)
      EXPECT_TRUE(choose::has_kernel_tile(Type::bf16, hopper, t.tile_m, t.tile_n));
    EXPECT_EQ(machine.own_one_step.points.empty(), !hopper);
  }
}

// Rows that begin amid sectors of memory are slow to load, and narrow tiles load more: where no record tells of such
// rows, as two H200s' do, tiles are wide.
TEST(Cards, RowsAtOddPlacesGetWideTiles) {
  test::Random random(test::seed_from_environment());
  for (const char* gpu : {"NVIDIA H200", "NVIDIA H100 80GB HBM3"}) {
    int narrow = 0, wide = 0;
    for (int i = 0; i < 100; ++i) {
      const int ranks = gpu == std::string("NVIDIA H200") ? 4 : random.one_of({2, 4});
      const Problem p{Operator::gemm_reduce_scatter,
                      ranks * 256 * random.between(4, 16),
                      256 * random.between(16, 48),
                      ranks * (512 * random.between(8, 24) + 8),
                      ranks,
                      Type::bf16};
      const plan::Candidate c = choose::choose_gpu_candidate(p, {}, {}, {gpu, 9});
      if (c.strategy == Strategy::fused) ++(c.knobs.tile_m * c.knobs.tile_n < 128 * 192 ? narrow : wide);
    }
    std::cout << gpu << ": " << narrow << " narrow, " << wide << " wide\n";
    EXPECT_LE(narrow, 5) << gpu;
  }
}

// One rank has nothing to hide.
TEST(Cards, OneRankRunsALibrary) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 200; ++i) {
    const Problem p{static_cast<Operator>(random.between(0, 3)),
                    8 * random.between(1, 2000),
                    8 * random.between(1, 2000),
                    8 * random.between(1, 2000),
                    1,
                    random.one_of({Type::bf16, Type::fp16})};
    const plan::Candidate c = choose::choose_gpu_candidate(p, {}, {}, {"NVIDIA H200", 9});
    EXPECT_EQ(c.strategy, Strategy::sequential) << test::describe({p, c.strategy, c.knobs});
  }
}

TEST(Cards, AKindIsAsOldAsTheOldestOfItsGpus) {
  GpuSurvey survey;
  survey.gpus = {{"NVIDIA H100", "a", 0, 132, 9, 0}, {"NVIDIA A100", "b", 0, 108, 8, 0}};
  EXPECT_EQ(choose::kind_of(survey, 1, true).name, "NVIDIA H100 and NVIDIA A100");
  EXPECT_EQ(choose::kind_of(survey, 1, true).major, 8);
  for (const bool processes : {true, false}) {
    EXPECT_TRUE(choose::kind_of(survey, 1, processes).copies && choose::kind_of(survey, 1, processes).libraries);
    EXPECT_FALSE(choose::kind_of(survey, 2, processes).copies);
    EXPECT_EQ(choose::kind_of(survey, 2, processes).libraries, processes);
  }
  EXPECT_FALSE(choose::kind_of(survey, 1, true).fp8);  // 8.0
  survey.gpus[1].minor = 9;
  EXPECT_TRUE(choose::kind_of(survey, 1, true).fp8);
}

}  // namespace
}  // namespace imbrex
