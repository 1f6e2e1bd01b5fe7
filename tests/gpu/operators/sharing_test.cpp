// Ranks that share a GPU.
#include <gtest/gtest.h>

#include <chrono>

#include "gpu/harness/gpu_case.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

test::GpuCase sharing(int ranks_per_gpu) {
  test::GpuCase c;
  c.options.ranks_per_gpu = ranks_per_gpu;
  c.options.heap_bytes = std::size_t{1} << 26;
  return c;
}

TEST(GpuSharing, EveryOperatorIsRight) {
  NEEDS_GPUS(1);
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_to_all, Operator::gemm_all_reduce})
    for (const int ranks : {2, 3, 4, 8})
      for (const int cluster_k : {1, 2}) {
        const Problem p{op, 48 * ranks, 192 * ranks, 136 * ranks, ranks, Type::bf16};
        Knobs k{.tile_m = 64, .tile_n = 64, .cluster_k = cluster_k, .transport = Transport::store};
        k.span_shards = op == Operator::all_gather_gemm;
        SCOPED_TRACE(test::describe({p, Strategy::fused, k}));
        test::GpuCase c = sharing(ranks);
        c.replays = 100;
        const test::Outcome outcome = test::run_on_gpus(make_plan(p, Strategy::fused, k), c);
        EXPECT_EQ(outcome.code, 0) << outcome.message;
        EXPECT_LE(outcome.worst, 1) << outcome.kernel << ": " << outcome.message;
        EXPECT_EQ(outcome.differing, 0);
        EXPECT_EQ(outcome.kernel.find("sharing K") != std::string::npos, cluster_k == 2) << outcome.kernel;
      }
}

TEST(GpuSharing, SaysWhatItTakes) {
  NEEDS_GPUS(1);
  const auto refused = [](Strategy strategy, Transport transport, int ranks_per_gpu, ErrorCode code,
                          const std::string& why) {
    const test::Outcome outcome = test::run_on_gpus(
        make_plan({Operator::all_gather_gemm, 64, 64, 64, 2, Type::bf16}, strategy, {.transport = transport}),
        sharing(ranks_per_gpu));
    EXPECT_EQ(outcome.code, static_cast<int>(code));
    EXPECT_NE(outcome.message.find(why), std::string::npos) << outcome.message;
  };
  refused(Strategy::fused, Transport::push, 2, ErrorCode::invalid_input, "operands that copy engines bring");
  refused(Strategy::sequential, Transport::push, 2, ErrorCode::invalid_input, "library collectives");
  refused(Strategy::fused, Transport::store, -1, ErrorCode::invalid_input, "ranks_per_gpu = -1: it must be 1, or more");
}

// One rank owns the only column and has nothing to send: it does not wait for the other, which refuses to.
TEST(GpuSharing, WhatOneRankRefusesAllRefuse) {
  NEEDS_GPUS(1);
  if (test::ranks_per_gpu() > 1) GTEST_SKIP() << "tests skip copies then";
  const Problem p{Operator::gemm_all_reduce, 11, 1, 2, 2, Type::bf16};
  const auto begin = std::chrono::steady_clock::now();
  const test::Outcome outcome =
      test::run_on_gpus(make_plan(p, Strategy::fused, {.transport = Transport::push}), sharing(2));
  EXPECT_EQ(outcome.code, static_cast<int>(ErrorCode::invalid_input)) << outcome.message;
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));
}

}  // namespace
}  // namespace imbrex
