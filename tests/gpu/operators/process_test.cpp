// Ranks that are processes and share GPUs: at once, where CUDA's MPS runs, else by time slices, in which a wait takes
// milliseconds. IMBREX_TEST_RANKS=processes.
#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <vector>

#include "execute/cuda/lanes/stream_execution.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/lost_rank.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/skips.hpp"
#include "gpu/operators/operator_subject.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::expect_exact, test::expect_right, test::GpuCase;

constexpr int ranks = 4;
constexpr Operator operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                  Operator::gemm_all_to_all};

// Epochs of a plan, an even number: as many as asked for, else `at_once` under MPS and `in_turn` without.
int epochs(int at_once, int in_turn) {
  const char* text = std::getenv("IMBREX_TEST_EPOCHS");
  const int count = text != nullptr ? std::atoi(text) : test::mps_runs() ? at_once : in_turn;
  return std::max(count / 2 * 2, 2);
}

CudaOptions with_heap(std::size_t bytes, int ranks_per_gpu) {
  CudaOptions options;
  options.heap_bytes = bytes;
  options.ranks_per_gpu = ranks_per_gpu;
  return options;
}

// Sums of integers up to 4 are integers that fp32 holds, in whatever order and by whichever rank they are
// added.
Problem exact_problem(Operator op) { return {op, 512, 256, 128, ranks, Type::fp32}; }

TEST(GpuProcesses, FusedPlansFromAGraphWithDelays) {
  NEEDS_SHARING(ranks);
  GpuCase c = test::exact_case();
  c.whole_numbers = false;  // bf16 rounds
  c.options.testing.delays = 21;
  c.options.testing.max_delay = 2e-5;
  c.replays = epochs(10000, 20) / 2;
  std::vector<Plan> plans;
  for (const Operator op : operators) {
    plans.push_back(make_plan({op, 520, 1024, 256, ranks, Type::bf16}, Strategy::fused,
                              {.tile_m = 64, .tile_n = 64, .cluster = 1, .transport = Transport::store}));
  }
  for (const test::Outcome& outcome : expect_right(plans, c))
    EXPECT_EQ(outcome.kernel.find("plain"), std::string::npos) << outcome.kernel;
}

TEST(GpuProcesses, FusedPlansAreExactOnWholeNumbers) {
  NEEDS_SHARING(ranks);
  GpuCase c = test::exact_case();
  c.repeats = epochs(20, 2);
  std::vector<Plan> plans;
  for (const Operator op : operators)
    plans.push_back(make_plan(exact_problem(op), Strategy::fused, {.transport = Transport::store}));
  expect_exact(plans, c);
}

// Half of the epochs are called, half replayed, two at a time.
GpuCase half_replayed() {
  GpuCase c = test::exact_case();
  c.repeats = epochs(100, 4) / 2;
  c.replays = c.repeats / 2;
  return c;
}

// By cuBLASLt and NCCL, which takes every rank for a host.
TEST(GpuProcesses, LibraryPlansGoThroughNccl) {
  NEEDS_SHARING(ranks);
  const GpuCase c = half_replayed();
  std::vector<Plan> plans;
  for (const Operator op : operators)
    for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed})
      plans.push_back(make_plan(exact_problem(op), strategy, {.chunks = 2, .partial = Type::fp32}));
  expect_exact(plans, c);
}

// Blocks of A go round by NCCL's sends, whole or in chunks, one row each among them; several B; the gathered A.
TEST(GpuProcesses, RingsGoThroughNccl) {
  NEEDS_SHARING(ranks);
  const GpuCase c = half_replayed();
  std::vector<Plan> plans;
  for (const std::int64_t rows : {1, 7, 128}) {
    Problem p = exact_problem(Operator::all_gather_gemm);
    p.m = rows * ranks;
    p.gathered_a = rows == 7;
    if (rows == 7) p.more_n = {128, 512};
    for (const int chunks : {1, 2, 3})
      plans.push_back(make_plan(p, Strategy::decomposed, {.chunks = chunks, .partial = Type::fp32}));
  }
  expect_exact(plans, c);
}

// Imbrex' own collectives after a library's product.
TEST(GpuProcesses, LibraryPlansGoThroughOwnCollectives) {
  NEEDS_SHARING(ranks);
  GpuCase c = test::exact_case();
  c.repeats = c.replays = epochs(100, 4) / 2;
  std::vector<Plan> plans;
  for (const Operator op : operators)
    plans.push_back(
        make_plan(exact_problem(op), Strategy::sequential, {.transport = Transport::store, .partial = Type::fp32}));
  expect_exact(plans, c);
}

// As users call them: a plan without copies is chosen, whatever was measured on GPUs of their own.
TEST(GpuProcesses, OperatorsChooseWhatRunsThere) {
  NEEDS_SHARING(ranks);
  const int calls = epochs(20, 2);
  const int code = test::on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = 30}, [&](World& world) {
    for (const Operator op : operators)
      for (const std::int64_t m : {64, 2048}) {
        test::Subject s(world, op, {m, 1024, 512, Type::bf16}, test::options_of(std::nullopt, Transport::store, 0),
                        false);
        const test::Stream stream(world);
        for (int i = 0; i < calls; ++i) {
          s.poison(stream);
          s.call(stream);
        }
        s.op().synchronize(stream);
        s.judge(std::string(name_of(op)) + " of " + std::to_string(m) + " rows");
      }
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(GpuProcesses, WhatCopiesBringIsRefused) {
  NEEDS_SHARING(ranks);
  test::Trouble told;
  const int code = test::on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = 30}, [&](World& world) {
    const auto executor = make_cuda_executor(world, with_heap(1 << 20, test::ranks_per_gpu()));
    try {
      executor->prepare(make_plan({Operator::all_gather_gemm, 512, 256, 256, ranks, Type::bf16}, Strategy::fused,
                                  {.transport = Transport::push}));
    } catch (const Error& error) {
      told.add(error.what());
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(told.list().size(), static_cast<std::size_t>(ranks));
  for (const std::string& text : told.list())
    EXPECT_NE(text.find("operands that copy engines bring need a GPU for each rank"), std::string::npos) << text;
}

// A process that sees one GPU may be one of a launcher that shows each its own; here they see the same one.
TEST(GpuProcesses, TooManyOnAGpuAreNamed) {
  NEEDS_SHARING(ranks);
  if (test::gpus() > test::ranks_per_gpu()) GTEST_SKIP() << "processes see several GPUs";
  test::Trouble told;
  const int code = test::on_world(ranks, {.heap_bytes = 1 << 20, .wait_limit = 30}, [&](World& world) {
    try {
      make_cuda_executor(world, with_heap(1 << 20, 2));
    } catch (const Error& error) {
      told.add(error.what());
    }
    return 0;
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(told.list().size(), static_cast<std::size_t>(ranks));
  for (const std::string& text : told.list()) {
    EXPECT_NE(text.find("ranks 0, 1 and 2 have the same GPU, "), std::string::npos) << text;
    EXPECT_NE(text.find("which ranks_per_gpu = 2 gives to 2"), std::string::npos) << text;
  }
}

// A process that ends between two calls: those that wait for it in a kernel are told, and do not hang.
TEST(GpuProcesses, ALostProcessEndsTheOthers) {
  NEEDS_SHARING(ranks);
  test::expect_others_told({make_plan({Operator::gemm_all_reduce, 512, 512, 512, ranks, Type::bf16}, Strategy::fused,
                                      {.cluster = 1, .transport = Transport::store})});
}

}  // namespace
}  // namespace imbrex
