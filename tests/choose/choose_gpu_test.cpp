// What is chosen for GPUs, those that no table knows, too.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "choose/choose_gpu.hpp"
#include "choose/kernel_tiles.hpp"
#include "execute/cuda/refusal.hpp"
#include "execute/cuda/tables/translate.hpp"
#include "imbrex/error.hpp"
#include "imbrex/plan.hpp"
#include "plan/problem.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

// Whether Imbrex' own collective after a library's product is chosen.
bool is_own(const choose::GpuKind& gpus, int ranks, std::int64_t m, Type type = Type::bf16,
            std::optional<Strategy> strategy = {}) {
  const Problem p{Operator::gemm_reduce_scatter, m, 8192, 28672, ranks, type};
  const plan::Candidate chosen = choose::choose_gpu_candidate(p, strategy, {}, gpus);
  return chosen.strategy == Strategy::sequential && chosen.knobs.transport == Transport::store;
}

const choose::GpuKind h100{"NVIDIA H100 80GB HBM3", 9}, a100{"NVIDIA A100-SXM4-80GB", 8};

// Whether there is a kernel on tensor cores for all of the plan's tiles.
bool on_tensor_cores(const Plan& plan, bool hopper) {
  const auto kernels = choose::kernel_tiles();
  return cuda::refusal_of_tma(plan).empty() &&
         std::any_of(kernels.begin(), kernels.end(), [&](const cuda::KernelTile& t) {
           return t.type == plan.problem.type && t.hopper == hopper && t.rows == plan.knobs.tile_m &&
                  t.cols == plan.knobs.tile_n && t.shares_k == (plan.knobs.cluster_k > 1);
         });
}

TEST(ChooseGpuPlan, HopperWithoutATableTakesTheH200s) {
  for (const std::int64_t m : {16, 512, 8192}) {
    const Problem p{Operator::gemm_reduce_scatter, m, 8192, 28672, 4, Type::bf16};
    const plan::Candidate h200 = choose::choose_gpu_candidate(p, {}, {}, {"NVIDIA H200", 9}),
                          other = choose::choose_gpu_candidate(p, {}, {}, h100);
    EXPECT_EQ(other.strategy, h200.strategy);
    plan::Candidate same = other;  // except the tile
    same.knobs.tile_m = h200.knobs.tile_m, same.knobs.tile_n = h200.knobs.tile_n,
    same.knobs.cluster = h200.knobs.cluster;
    EXPECT_EQ(same.knobs, h200.knobs);
  }
}

// On H100s, whose power is what limits large products, other tiles win than on H200s: also where an entry of H200s
// names the plan.
TEST(ChooseGpuPlan, LargeProductsTakeTheTileThatIsBestOnTheCard) {
  int wide = 0, square = 0;
  for (const Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (const std::int64_t m : {8192, 12288})
      for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{8192, 28672}, {12288, 49152}, {8192, 29568}})
        for (const int ranks : {2, 4}) {
          const Problem p{op, m, n, k, ranks, Type::bf16};
          choose::Reason reason;
          const plan::Candidate on_h100 = choose::choose_gpu_candidate(p, {}, {}, h100, {}, &reason),
                                on_h200 = choose::choose_gpu_candidate(p, {}, {}, {"NVIDIA H200", 9});
          SCOPED_TRACE(test::describe({p, on_h100.strategy, on_h100.knobs}) + ": " + reason.basis);
          EXPECT_NE(reason.basis, "");
          // Two ranks' exchanges hide little behind such a product, and were found fastest in other ways.
          const bool decided = op != Operator::all_gather_gemm && (op != Operator::gemm_all_to_all || ranks != 2);
          if (decided) {
            EXPECT_EQ(on_h200.strategy, Strategy::fused);
            EXPECT_EQ(on_h200.knobs.tile_n, 128);
            ++square;
          }
          if (on_h100.strategy != Strategy::fused) continue;
          EXPECT_TRUE(on_tensor_cores(make_plan(p, on_h100.strategy, on_h100.knobs), true));
          wide += on_h100.knobs.tile_n == 256;
        }
  EXPECT_GT(wide, 30);
  EXPECT_EQ(square, 30);  // each of them
}

// Imbrex' own collectives of few rows are faster than NCCL's, where they run.
TEST(ChooseGpuPlan, OwnCollectivesBehindProductsOfFewRowsOnHopper) {
  EXPECT_TRUE(is_own(h100, 8, 64));
  EXPECT_TRUE(is_own(h100, 8, 64, Type::fp16));
  EXPECT_FALSE(is_own(h100, 8, 64, Type::bf16, Strategy::sequential));
  EXPECT_TRUE(is_own(h100, 4, 64));
  EXPECT_FALSE(is_own(h100, 4, 64, Type::bf16, Strategy::sequential));
  EXPECT_FALSE(is_own(h100, 8, 4096));
  EXPECT_FALSE(is_own(h100, 16, 64));
  EXPECT_FALSE(is_own(a100, 4, 64));
}

// Shards that take longer to copy than what hides them come in parts.
TEST(ChooseGpuPlan, LongCopiesComeInParts) {
  test::Random random(test::seed_from_environment());
  int rows = 0, columns = 0;
  for (int i = 0; i < 300; ++i) {
    Problem p{
        Operator::all_gather_gemm, 0, 0, 0, random.one_of({2, 4}), random.one_of({Type::bf16, Type::fp16, Type::e4m3})};
    p.m = p.ranks * random.between(400, 1600), p.n = p.ranks * 16 * random.between(16, 64),
    p.k = 16 * random.between(1000, 4000);
    if (p.type == Type::e4m3 && random.chance(0.5)) p.scales = random.one_of({Scales::tensor, Scales::row});
    const plan::Candidate chosen = choose::choose_gpu_candidate(p, {}, {}, {"NVIDIA H200", 9});
    if (chosen.strategy != Strategy::fused || chosen.knobs.transport != Transport::push) continue;
    SCOPED_TRACE(test::describe({p, chosen.strategy, chosen.knobs}));
    const bool in_rows = chosen.knobs.comm_rows > 0, in_columns = chosen.knobs.k_slices > 1;
    rows += in_rows, columns += in_columns;
    if (!in_rows && !in_columns) continue;
    const Plan plan = make_plan(p, chosen.strategy, chosen.knobs);
    EXPECT_FALSE(check(plan).has_value());
    EXPECT_EQ(cuda::refusal_of_plan(plan), "");
  }
  EXPECT_GT(rows, 5);
  EXPECT_GT(columns, 5);
}

TEST(ChooseGpuPlan, EightBitOperandsAreGatheredByNccl) {
  const Problem p{Operator::all_gather_gemm, 64, 28672, 8192, 8, Type::e4m3};
  const plan::Candidate chosen = choose::choose_gpu_candidate(p, {}, {}, h100);
  EXPECT_FALSE(chosen.strategy == Strategy::sequential && chosen.knobs.transport == Transport::store);
}

// Choices are made from records of other types and sizes, and have to suit all others.
TEST(ChooseGpuPlan, ChoicesSuitAnyProblem) {
  test::Random random(test::seed_from_environment());
  int fused = 0, of_libraries = 0;
  for (int i = 0; i < 500; ++i) {
    Problem p = test::random_problem(random, {.max_ranks = 16, .max_size = 1500, .e4m3 = true});
    if (i % 3 != 0) p.n = 8 * p.ranks * (p.n % 40 + 1), p.k = 16 * p.ranks * (p.k % 20 + 1);
    const bool hopper = i % 2 == 0;
    const plan::Candidate chosen = choose::choose_gpu_candidate(p, {}, {}, hopper ? h100 : a100);
    SCOPED_TRACE(test::describe({p, chosen.strategy, chosen.knobs}));
    const Plan plan = make_plan(p, chosen.strategy, chosen.knobs);
    EXPECT_FALSE(check(plan).has_value());
    EXPECT_EQ(cuda::refusal_of_plan(plan), "");
    ++(chosen.strategy == Strategy::fused ? fused : of_libraries);
    // cuBLASLt takes no more of e4m3 than the kernels do, and rounds too early after some biases.
    if (chosen.strategy != Strategy::fused || p.type == Type::e4m3 || !cuda::refusal_of_library_bias(p).empty())
      continue;
    EXPECT_TRUE(on_tensor_cores(plan, hopper));
  }
  EXPECT_GT(fused, 50);
  EXPECT_GT(of_libraries, 50);
}

// Asking for the reason changes no choice, and every choice that strategy auto makes has one.
TEST(ChooseGpuPlan, ReasonsAreGiven) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 100; ++i) {
    const Problem p = test::random_problem(random, {.max_ranks = 8, .max_size = 1500, .e4m3 = true});
    choose::GpuKind gpus = i % 2 == 0 ? h100 : a100;
    gpus.libraries = i % 3 != 0;
    gpus.nccl = i % 5 != 0;
    SCOPED_TRACE(test::describe({p, {}, {}}));
    choose::Reason reason;
    const plan::Candidate chosen = choose::choose_gpu_candidate(p, {}, {}, gpus),
                          explained = choose::choose_gpu_candidate(p, {}, {}, gpus, {}, &reason);
    EXPECT_EQ(explained.strategy, chosen.strategy);
    EXPECT_EQ(explained.knobs, chosen.knobs);
    EXPECT_NE(reason.basis, "");
    choose::Reason none;
    static_cast<void>(choose::choose_gpu_candidate(p, Strategy::sequential, {}, gpus, {}, &none));
    EXPECT_EQ(none.basis, "");
  }
}

TEST(ChooseGpuPlan, ReasonsAreTrue) {
  const auto reason_of = [](const Problem& p, const choose::GpuKind& gpus, std::optional<CodecPair> codec = {}) {
    choose::Reason reason;
    static_cast<void>(choose::choose_gpu_candidate(p, {}, {}, gpus, codec, &reason));
    return reason;
  };
  const choose::GpuKind h200{"NVIDIA H200", 9};
  const Problem tuned{Operator::gemm_reduce_scatter, 4096, 8192, 28672, 4, Type::bf16};
  EXPECT_EQ(reason_of(tuned, h200).basis, "measured as the fastest for this size on NVIDIA H200");
  Problem near = tuned;
  near.n += 256;
  EXPECT_EQ(reason_of(near, h200).basis, "the fastest by what was measured for sizes like it on NVIDIA H200");
  EXPECT_EQ(reason_of(tuned, a100).basis,
            "no plan was measured on NVIDIA A100-SXM4-80GB: what libraries do; `imbrex tune` measures");
  const CodecPair int8 = parse_codec_pair("int8");
  const choose::Reason predicted = reason_of(tuned, h200, int8);
  EXPECT_EQ(predicted.basis, "predicted by the cost model for NVIDIA H200; `imbrex tune` measures");
  ASSERT_GE(predicted.expected.size(), 2u);
  EXPECT_LE(predicted.expected[0].seconds, predicted.expected[1].seconds);
  EXPECT_EQ(predicted.expected[0].strategy, choose::choose_gpu_candidate(tuned, {}, {}, h200, int8).strategy);
  Problem plain = tuned;
  plain.type = Type::fp32;
  EXPECT_EQ(reason_of(plain, h200).basis, "no kernel of Imbrex' on tensor cores takes fp32 operands");
}

// Asked for, signaled plans keep SMs free and have tiles of the kernels'.
TEST(ChooseGpuPlan, SignaledPlansRun) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 60; ++i) {
    Problem p = test::random_problem(random, {.max_ranks = 8, .max_size = 1500, .bias = true});
    p.ranks = std::max(p.ranks, 2);
    p.m = 8 * p.ranks * (p.m % 300 + 1), p.n = 8 * p.ranks * (p.n % 40 + 1), p.k = 16 * p.ranks * (p.k % 20 + 1);
    const bool hopper = i % 2 == 0;
    const plan::Candidate chosen = choose::choose_gpu_candidate(p, Strategy::signaled, {}, hopper ? h100 : a100);
    SCOPED_TRACE(test::describe({p, chosen.strategy, chosen.knobs}));
    const Plan plan = make_plan(p, chosen.strategy, chosen.knobs);
    EXPECT_FALSE(check(plan).has_value());
    EXPECT_EQ(cuda::refusal_of_plan(plan), "");
    EXPECT_GT(chosen.knobs.kept_free, 0);
    EXPECT_TRUE(p.type == Type::fp32 || on_tensor_cores(plan, hopper));
  }
}

TEST(ChooseGpuPlan, SeveralOutputsAreChosenForAsOne) {
  for (const std::int64_t m : {64, 4096}) {
    Problem p{Operator::all_gather_gemm, m, 28672, 8192, 4, Type::bf16};
    for (const bool list : {false, true}) {
      p.more_n = {list ? 1024 : 0, 0};
      p.gathered_a = !list;  // with one B
      for (const choose::GpuKind& gpus : {choose::GpuKind{"NVIDIA H200", 9}, h100, a100}) {
        Problem one{Operator::all_gather_gemm, m, list ? 28672 + 1024 : 28672, 8192, 4, Type::bf16};
        EXPECT_EQ(choose::choose_gpu_candidate(p, {}, {}, gpus).strategy,
                  choose::choose_gpu_candidate(one, {}, {}, gpus).strategy);
        EXPECT_EQ(cuda::refusal_of_plan(choose::choose_gpu_plan(p, {}, {}, gpus)), "");
        EXPECT_EQ(cuda::refusal_of_plan(choose::choose_gpu_plan(p, {}, Knobs{}, gpus)), "");
        const Plan fused = choose::choose_gpu_plan(p, Strategy::fused, {}, gpus);
        EXPECT_EQ(cuda::refusal_of_plan(fused), "");
        EXPECT_TRUE(on_tensor_cores(fused, gpus.major == 9));
      }
    }
  }
}

// One B of as many columns in all would suit.
TEST(ChooseGpuPlan, OddColumnsOfOneOfSeveralBGoToALibrary) {
  Problem p{Operator::all_gather_gemm, 4096, 28672, 8192, 4, Type::bf16};
  p.more_n = {4 * 1020, 4 * 1028};
  const choose::GpuKind shared{"NVIDIA H200", 9, false, false};
  EXPECT_EQ(choose::choose_gpu_candidate(p, {}, {}, h100).strategy, Strategy::sequential);
  EXPECT_EQ(choose::choose_gpu_candidate(p, {}, {}, shared).strategy, Strategy::fused);
  p.b_layout = Layout::column_major;  // which takes an even number
  EXPECT_EQ(choose::choose_gpu_candidate(p, {}, {}, h100).strategy, Strategy::fused);
}

// Rows of A and B that lie whole 16 bytes apart are no other problem; others go to a library, except e4m3.
TEST(ChooseGpuPlan, RowsWithGaps) {
  for (const Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (const choose::GpuKind& gpus : {choose::GpuKind{"NVIDIA H200", 9}, h100, a100}) {
      const Problem p{op, 4096, 8192, 8192, 4, Type::bf16};
      Problem with = p;
      with.lda = 8200, with.ldb = 3 * 8192, with.ldo = 8193;
      const Plan plan = choose::choose_gpu_plan(with, {}, {}, gpus);
      EXPECT_EQ(plan.strategy, choose::choose_gpu_candidate(p, {}, {}, gpus).strategy) << name_of(op);
      EXPECT_EQ(cuda::refusal_of_plan(plan), "");
      EXPECT_FALSE(check(plan).has_value());
      EXPECT_TRUE(plan.strategy != Strategy::fused || on_tensor_cores(plan, gpus.major == 9));
      with.lda = 8193;
      EXPECT_EQ(choose::choose_gpu_candidate(with, {}, {}, gpus).strategy, Strategy::sequential);
      EXPECT_EQ(cuda::refusal_of_plan(choose::choose_gpu_plan(with, {}, {}, gpus)), "");
      with.bias = true;  // cuBLASLt would round before it adds one
      EXPECT_EQ(cuda::refusal_of_plan(choose::choose_gpu_plan(with, {}, {}, gpus)), "");
    }
  Problem one{Operator::all_gather_gemm, 48, 64, 64, 1, Type::bf16, true};
  EXPECT_EQ(choose::choose_gpu_candidate(one, {}, {}, h100).strategy, Strategy::sequential);
  one.ldo = 72;
  EXPECT_EQ(choose::choose_gpu_candidate(one, {}, {}, h100).strategy, Strategy::sequential);
  one.ldo = 67;
  EXPECT_EQ(choose::choose_gpu_candidate(one, {}, {}, h100).strategy, Strategy::fused);
}

TEST(ChooseGpuPlan, TilesHaveAKernelOfTheirType) {
  for (const Type type : {Type::bf16, Type::fp16, Type::e4m3})
    for (const bool hopper : {true, false})
      for (const int ranks : {2, 4, 8})
        for (const std::int64_t m : {16, 64, 128, 256, 512, 2048})
          for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                    Operator::gemm_all_to_all}) {
            if (!choose::has_kernel_tiles(type, hopper)) continue;
            const Problem p{op, m, 8192, 8192, ranks, type};
            const plan::Candidate chosen =
                choose::choose_gpu_candidate(p, {}, {}, hopper ? choose::GpuKind{"NVIDIA H200", 9} : a100);
            if (chosen.strategy != Strategy::fused) continue;
            EXPECT_TRUE(on_tensor_cores(make_plan(p, chosen.strategy, chosen.knobs), hopper))
                << test::describe({p, chosen.strategy, chosen.knobs});
          }
}

TEST(ChooseGpuPlan, WhatNoTensorCoreTakesGoesToALibrary) {
  const auto strategy = [](const Problem& p) { return choose::choose_gpu_candidate(p, {}, {}, h100).strategy; };
  Problem p{Operator::gemm_reduce_scatter, 4096, 8192, 28672, 4, Type::bf16};
  ASSERT_EQ(strategy(p), Strategy::fused);
  p.type = Type::fp32;
  EXPECT_NE(strategy(p), Strategy::fused);
  p.type = Type::bf16;
  p.n = 8190;
  EXPECT_NE(strategy(p), Strategy::fused);
  p.b_layout = Layout::column_major;
  EXPECT_EQ(strategy(p), Strategy::fused);
  p.n = 8191;
  EXPECT_NE(strategy(p), Strategy::fused);
  p.n = 8192;
  for (const Layout layout : {Layout::column_major, Layout::row_major}) {
    p.b_layout = layout;
    p.k = 4 * 7168;
    for (const Type type : {Type::fp16, Type::bf16}) {
      p.type = type;
      EXPECT_EQ(strategy(p), Strategy::fused);
    }
    p.k = 4 * 7166;
    EXPECT_NE(strategy(p), Strategy::fused);
  }
  EXPECT_EQ(choose::choose_gpu_candidate(p, Strategy::fused, {}, h100).strategy, Strategy::fused);
}

// A100s have no table.
TEST(ChooseGpuPlan, ShardsOfAlikeRowsAreCutAlike) {
  const auto chosen = [](std::int64_t m) {
    return choose::choose_gpu_candidate({Operator::all_gather_gemm, m, 57344, 8192, 8, Type::bf16}, Strategy::fused, {},
                                        a100);
  };
  const plan::Candidate typical = chosen(8192);
  ASSERT_GT(typical.knobs.comm_rows, 0);
  const std::int64_t pieces = 1024 / typical.knobs.comm_rows;
  for (const std::int64_t m : {8184, 8200, 9216, 11000}) {
    plan::Candidate other = chosen(m);
    EXPECT_EQ(other.knobs.comm_rows, ((m + 7) / 8 + pieces - 1) / pieces) << m;
    other.knobs.comm_rows = typical.knobs.comm_rows;
    EXPECT_EQ(other.knobs, typical.knobs) << m;
  }
}

// The plan of 128 rows a shard would have tiles for 256 of them.
TEST(ChooseGpuPlan, ShardsThatDoNotFillTilesAreCutOtherwise) {
  const auto tiles_rows = [](std::int64_t m) {
    const plan::Candidate c =
        choose::choose_gpu_candidate({Operator::gemm_all_to_all, m, 8192, 8192, 8, Type::bf16}, {}, {}, h100);
    if (c.strategy != Strategy::fused) return m;
    const std::int64_t spanned = c.knobs.span_shards ? m : m / 8;
    return (spanned + c.knobs.tile_m - 1) / c.knobs.tile_m * c.knobs.tile_m * (c.knobs.span_shards ? 1 : 8);
  };
  for (const std::int64_t shard : {129, 140, 150, 160}) EXPECT_LT(tiles_rows(8 * shard), 8 * 256) << shard;
}

// Without peers there is nothing to hide, unless cuBLASLt does not add the bias as it should.
TEST(ChooseGpuPlan, OneRankTakesALibrarysProduct) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 200; ++i) {
    Problem p = test::random_problem(random, {.max_ranks = 1, .max_size = 4000, .bias = true});
    if (p.type == Type::fp32) continue;
    for (const choose::GpuKind& gpus : {choose::GpuKind{"NVIDIA H200", 9}, h100, a100}) {
      const plan::Candidate chosen = choose::choose_gpu_candidate(p, {}, {}, gpus);
      EXPECT_EQ(chosen.strategy, cuda::refusal_of_library_bias(p).empty() ? Strategy::sequential : Strategy::fused)
          << test::describe({p, chosen.strategy, chosen.knobs});
    }
  }
}

// Ranks that share a GPU: no copy engine between them, and no library where they are threads.
TEST(ChooseGpuPlan, RanksThatShareAGpuGetPlansWithoutCopies) {
  test::Random random(test::seed_from_environment());
  const auto choose_for = [](const Problem& p, std::optional<Strategy> strategy, bool processes, const char* name) {
    const choose::GpuKind gpus{name, 9, false, processes};
    const plan::Candidate chosen = choose::choose_gpu_candidate(p, strategy, {}, gpus);
    SCOPED_TRACE(test::describe({p, chosen.strategy, chosen.knobs}));
    if (strategy || !processes) {
      EXPECT_EQ(chosen.strategy, strategy.value_or(Strategy::fused));
    }
    const Plan plan = make_plan(p, chosen.strategy, chosen.knobs);
    EXPECT_FALSE(check(plan).has_value());
    EXPECT_EQ(cuda::refusal_of_plan(plan), "");
    EXPECT_EQ(cuda::refusal_of_sharing(plan, p.ranks, processes || strategy.has_value()), "");
    return chosen;
  };
  int changed = 0;
  for (int i = 0; i < 200; ++i) {
    Problem p = test::random_problem(random, {.max_ranks = 8, .max_size = 1500});
    if (i % 2 != 0) p.n = 8 * p.ranks * (p.n % 40 + 1), p.k = 16 * p.ranks * (p.k % 20 + 1);
    choose_for(p, {}, i % 3 != 0, i % 4 < 2 ? "NVIDIA H200" : "Some GPU");
    choose_for(p, Strategy::fused, true, "NVIDIA H200");
  }
  // What was measured as fastest pushes.
  for (const std::int64_t m : {512, 2048, 8192})
    for (const int ranks : {2, 4, 8}) {
      const Problem p{Operator::all_gather_gemm, m, 57344, 8192, ranks, Type::bf16};
      const plan::Candidate with = choose::choose_gpu_candidate(p, Strategy::fused, {}, {"NVIDIA H200", 9}),
                            without = choose_for(p, Strategy::fused, true, "NVIDIA H200");
      changed += with.knobs.transport == Transport::push && without.knobs.transport == Transport::store ? 1 : 0;
    }
  EXPECT_GT(changed, 3);
}

// Where a rank's environment keeps Imbrex from NCCL, what is chosen does without it, and runs.
TEST(ChooseGpuPlan, WithoutNcclNothingNeedsIt) {
  test::Random random(test::seed_from_environment());
  int fused = 0, own = 0;
  for (int i = 0; i < 300; ++i) {
    const Problem p = test::random_problem(random, {.max_ranks = 8, .max_size = 1500, .bias = true});
    choose::GpuKind gpus{i % 3 == 0 ? "NVIDIA H200" : "Some GPU", i % 4 == 0 ? 8 : 9};
    gpus.nccl = false;
    const plan::Candidate chosen = choose::choose_gpu_candidate(p, {}, {}, gpus);
    SCOPED_TRACE(test::describe({p, chosen.strategy, chosen.knobs}));
    const Plan plan = make_plan(p, chosen.strategy, chosen.knobs);
    EXPECT_EQ(cuda::refusal_of_plan(plan), "");
    for (const RankPlan& rank : plan.ranks)
      for (const Queue& queue : rank.queues)
        for (const Task& task : queue.tasks)
          if (const auto* work = std::get_if<Collective>(&task.work)) {
            EXPECT_EQ(work->backend, Backend::imbrex);
          }
    fused += chosen.strategy == Strategy::fused;
    own += chosen.strategy == Strategy::sequential && p.ranks > 1;
  }
  EXPECT_GT(fused, 0);
  EXPECT_GT(own, 0);
  // A strategy given by name reaches the executor, which says why it does not run.
  choose::GpuKind gpus = h100;
  gpus.nccl = false;
  const Problem p{Operator::gemm_reduce_scatter, 4096, 4096, 4096, 4, Type::bf16};
  EXPECT_EQ(choose::choose_gpu_candidate(p, Strategy::sequential, {}, gpus).strategy, Strategy::sequential);
}

// A codec leaves the plans that send codes, on any GPU, and without NCCL.
TEST(ChooseGpuPlan, ACodecIsInTheChosenPlan) {
  const std::optional<CodecPair> codec = parse_codec_pair("int8");
  int decomposed = 0;
  for (const std::int64_t m : {16, 512, 8192})
    for (const Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_reduce})
      for (choose::GpuKind gpus : {choose::GpuKind{"NVIDIA H200", 9}, h100, a100}) {
        gpus.nccl = m != 512;
        const Problem p{op, m, 8192, 8192, 4, Type::bf16};
        const plan::Candidate chosen = choose::choose_gpu_candidate(p, {}, {}, gpus, codec);
        EXPECT_NE(chosen.strategy, Strategy::fused);
        EXPECT_EQ(chosen.knobs.codec, codec);
        EXPECT_EQ(cuda::refusal_of_plan(make_plan(p, chosen.strategy, chosen.knobs)), "");
        decomposed += chosen.strategy == Strategy::decomposed;
        EXPECT_EQ(choose::choose_gpu_candidate(p, Strategy::decomposed, {}, gpus, codec).strategy,
                  Strategy::decomposed);
      }
  EXPECT_GT(decomposed, 0);
}

// Knobs that push: the strategies that do not send operands by copies are left.
TEST(ChooseGpuPlan, GivenKnobsThatPushAreNoFusedOnesWhereRanksShareAGpu) {
  const Problem p{Operator::all_gather_gemm, 2048, 57344, 8192, 4, Type::bf16};
  const Knobs pushing{.transport = Transport::push};
  EXPECT_NE(choose::choose_gpu_candidate(p, {}, pushing, {"NVIDIA H200", 9, false, true}).strategy, Strategy::fused);
  // Asked for by name, they are refused by name.
  const plan::Candidate asked =
      choose::choose_gpu_candidate(p, Strategy::fused, pushing, {"NVIDIA H200", 9, false, true});
  EXPECT_EQ(asked.knobs, pushing);
  EXPECT_NE(cuda::refusal_of_sharing(make_plan(p, asked.strategy, asked.knobs), 4, true), "");
}

// Tiles that divide N and that kernels have, in groups that cover them; also of one rank.
TEST(ChooseGpuPlan, PackedOutputs) {
  for (const choose::GpuKind& gpus : {h100, a100})
    for (const int ranks : {1, 4})
      for (const std::int64_t m : {1, 300, 4096}) {
        Problem p{Operator::gemm_all_reduce, m, 8192, 4096, ranks, Type::bf16};
        const Knobs knobs = choose::packed_knobs(p, &gpus);
        p.packed = plan::packed_blocks(p, knobs);
        const Plan plan = make_plan(p, Strategy::signaled, knobs);
        EXPECT_FALSE(check(plan).has_value());
        EXPECT_TRUE(on_tensor_cores(plan, gpus.major == 9)) << knobs.tile_m << " x " << knobs.tile_n;
        EXPECT_EQ(cuda::refusal_of_plan(plan), "");
        EXPECT_EQ(p.n % knobs.tile_n, 0);
      }
  const Problem odd{Operator::gemm_all_reduce, 64, 8191, 4096, 4, Type::bf16};
  EXPECT_THROW(choose::packed_knobs(odd, &h100), Error);
}

}  // namespace
}  // namespace imbrex
