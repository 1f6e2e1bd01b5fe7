// Nothing is stored into the memory of others once a call has failed: neither by what the call has still to do, nor by
// the calls that are queued after it, nor by a rank that comes to it late.
//
// One rank, the victim, sleeps past the others' limit, and looks at its memory twice: while the others wait for it,
// when all that the protocol allows is stored; and when they have given up. Then it comes to the call.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "collectives/cuda/cuda_collectives.hpp"
#include "execute/cuda/lanes/stream_execution.hpp"
#include "gpu/collectives/collective_ranks.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "gpu/harness/ranks.hpp"
#include "gpu/harness/stream.hpp"
#include "imbrex/error.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex {
namespace {

using cuda::QuantizedKnobs, cuda::QuantizedSteps, cuda::QuantizedWay, cuda::CudaCollectives, cuda::ExactAlgorithm,
    cuda::ExactKnobs, cuda::RmsNormKnobs, cuda::Turn;
using test::Stream, test::Trouble;
using Bytes = std::vector<std::byte>;

constexpr double limit = 1.5;

/// How long it takes until all that is queued stands, and how long the victim sleeps.
struct Pace {
  std::chrono::milliseconds until_all_stand, victims_sleep;
};
Pace usual{std::chrono::milliseconds(500), std::chrono::milliseconds(3000)};

void sleep_on_a_stream(void* pace) { std::this_thread::sleep_for(static_cast<const Pace*>(pace)->victims_sleep); }

/// What a rank does, and how its memory is read.
struct Subject {
  std::function<void()> call;          ///< queues one on `stream`
  std::function<void()> change_input;  ///< so that what later calls store is not what lies there
  std::function<void()> finish;        ///< throws what failed
  std::function<Bytes()> memory;       ///< that others can write
  cudaStream_t stream;
  Pace* pace = &usual;
};

/// Words of four bytes that differ. The word that ends all waits may: from 0 to 1, one of them.
std::string difference(const Bytes& before, const Bytes& after) {
  std::size_t different = 0, first = 0;
  bool aborts = true;
  for (std::size_t i = 0; i + 4 <= before.size(); i += 4) {
    std::uint32_t old = 0, now = 0;
    std::memcpy(&old, before.data() + i, 4);
    std::memcpy(&now, after.data() + i, 4);
    if (old == now) continue;
    if (different++ == 0) first = i;
    aborts = aborts && old == 0 && now == 1;
  }
  if (different == 0 || (different == 1 && aborts)) return "";
  return std::to_string(different) + " words changed, the first at byte " + std::to_string(first);
}

/// How far the ranks have come.
struct Progress {
  std::atomic<int> queued = 0, gave_up = 0;
  std::atomic<bool> late_is_over = false;
  std::atomic<bool> left = false;  // a rank ended by an error that the test does not expect
};

template <typename Condition>
bool await(Condition&& condition, std::chrono::milliseconds longest = std::chrono::seconds(60)) {
  for (const auto end = std::chrono::steady_clock::now() + longest; !condition();) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

template <typename Condition>
bool await(const Progress& progress, Condition&& condition) {
  return await([&] { return progress.left || condition(); }) && !progress.left;
}

/// Whether the subject's calls fail. A kernel that does not end then cannot be got rid of: the program ends with it.
bool fails(const Subject& s, const std::string& what) {
  try {
    s.finish();
    return false;
  } catch (const Error&) {
    if (!await([&] { return cudaStreamQuery(s.stream) != cudaErrorNotReady; }, std::chrono::seconds(30))) {
      std::fprintf(stderr, "%s: what was queued has not ended 30 s after it failed\n", what.c_str());
      std::_Exit(1);
    }
    return true;
  }
}

void run_victim(World& world, const Subject& s, const std::string& what, Progress& progress, Trouble& trouble) {
  const int others = world.size() - 1;
  IMBREX_CUDA_TRY(cudaLaunchHostFunc(s.stream, sleep_on_a_stream, s.pace));
  s.call();
  if (!await(progress, [&] { return progress.queued == others; }))
    trouble.add(what + ": the others did not queue their calls");
  std::this_thread::sleep_for(s.pace->until_all_stand);
  const Bytes before = s.memory();
  if (progress.gave_up != 0) trouble.add(what + ": the others gave up too early for this test");
  if (!await(progress, [&] { return progress.gave_up == others; })) trouble.add(what + ": the others did not give up");
  const Bytes after = s.memory();
  if (cudaStreamQuery(s.stream) != cudaErrorNotReady) trouble.add(what + ": the victim woke too early for this test");
  cudaGetLastError();
  if (const std::string changed = difference(before, after); !changed.empty())
    trouble.add(what + ": of the sleeping rank's memory " + changed);
  if (!fails(s, what)) trouble.add(what + ": the late rank was not told");
  progress.late_is_over = true;
}

void run_other(World& world, const Subject& s, const std::string& what, Progress& progress, Trouble& trouble) {
  s.change_input();
  bool told = false;
  try {
    for (int i = 0; i < 3; ++i) s.call();
  } catch (const Error&) {
    told = true;  // where a launch takes long, the first of these calls has failed before the last is queued
  }
  ++progress.queued;
  if (!fails(s, what) && !told) trouble.add(what + ": a rank alone was not told");
  ++progress.gave_up;
  await(progress, [&] { return progress.gave_up == world.size() - 1; });
  const Bytes before = s.memory();
  await(progress, [&] { return progress.late_is_over.load(); });
  if (const std::string changed = difference(before, s.memory()); !changed.empty())
    trouble.add(what + ": of the memory of a rank that had given up " + changed);
}

/// After one call that all make.
void run_ranks(World& world, const Subject& s, const std::string& what, Progress& progress, Trouble& trouble) {
  s.call();
  s.finish();
  world.barrier();
  if (world.rank() + 1 == world.size())
    run_victim(world, s, what, progress, trouble);
  else
    run_other(world, s, what, progress, trouble);
}

// ------------------------------------------------------------------------------------------------ products

constexpr std::size_t heap_bytes = std::size_t{32} << 20;

struct ProductCase {
  const char* kernel;
  std::int64_t tile_m, tile_n;
  Type type = Type::bf16;
  int cluster_k = 1;
  Reducer reducer = Reducer::tile;
  bool one_shot = false;
};

cuda::RawMemory filled(std::size_t bytes, int value) {
  cuda::RawMemory memory = cuda::raw_memory(bytes);
  cuda::fill(memory.get(), value, bytes);
  IMBREX_CUDA_TRY(cudaDeviceSynchronize());
  return memory;
}

void run_product(World& world, const Plan& plan, const ProductCase& p, const std::string& what, Progress& progress,
                 Trouble& trouble, Pace* pace = &usual) {
  CudaOptions options;
  options.kernel = p.kernel;
  options.heap_bytes = heap_bytes;
  options.ranks_per_gpu = test::ranks_per_gpu();
  const auto executor = make_cuda_executor(world, options);
  // The first allocation begins where the rank's part of the heap does.
  const std::shared_ptr<void> heap = executor->allocate_output(256);
  const RankShapes shapes = shapes_of(plan.problem);
  const std::size_t element = size_of(p.type);
  const auto bytes = [](const Extent& e, std::size_t size) { return static_cast<std::size_t>(e.rows * e.cols) * size; };
  const std::shared_ptr<void> out =
      executor->allocate_output(bytes(shapes.out, size_of(output_type(plan.problem.type))));
  const cuda::RawMemory a = filled(bytes(shapes.a, element), 0x3c), b = filled(bytes(shapes.b, element), 0x3c);
  const auto execution = executor->prepare(plan);
  auto& stream = dynamic_cast<cuda::StreamExecution&>(*execution);
  Subject s;
  s.pace = pace;
  s.stream = stream.stream();
  s.call = [&] { stream.enqueue(Addresses{a.get(), b.get(), out.get()}); };
  s.finish = [&] { stream.finish(); };
  s.change_input = [&] { IMBREX_CUDA_TRY(cudaMemsetAsync(a.get(), 0x38, bytes(shapes.a, element), s.stream)); };
  s.memory = [&] {
    Bytes all(heap_bytes);
    IMBREX_CUDA_TRY(cudaMemcpy(all.data(), heap.get(), all.size(), cudaMemcpyDeviceToHost));
    return all;
  };
  test::meet_if_sharing(world);
  run_ranks(world, s, what, progress, trouble);
  world.fail("the test is over");  // no rank waits for ranks whose calls failed
}

void expect_nothing_stored(Operator op, const ProductCase& p) {
  const int ranks = std::min(4, test::most_ranks());
  const Problem problem{op, 256 * ranks, 128 * ranks, 512 * ranks, ranks, p.type};
  Knobs k{.tile_m = p.tile_m, .tile_n = p.tile_n, .cluster_k = p.cluster_k, .transport = Transport::store};
  k.reducer = p.reducer;
  k.one_shot = p.one_shot;
  if (p.one_shot) k.reducer = Reducer::tail;
  const Plan plan = make_plan(problem, Strategy::fused, k);
  const std::string what = std::string(name_of(op)) + " " + p.kernel + (p.one_shot ? " one shot" : "");
  SCOPED_TRACE(what);
  Progress progress;
  Trouble trouble;
  run_threads(ranks, {.heap_bytes = 1 << 20, .wait_limit = limit}, [&](World& world) {
    try {
      run_product(world, plan, p, what, progress, trouble);
    } catch (const std::exception& error) {
      progress.left = true;
      trouble.add(what + ": " + error.what());
      world.fail(error.what());
    }
    return 0;
  });
  test::expect_none(0, trouble);
}

class GpuSentinel : public testing::TestWithParam<Operator> {};

TEST_P(GpuSentinel, AFailedProductStoresNothing) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  for (const ProductCase& p :
       {ProductCase{"pingpong 64x64 cluster 1", 64, 64}, ProductCase{"pingpong 128x128 cluster 2", 128, 128},
        ProductCase{"cooperative 128x256 cluster 2", 128, 256},
        ProductCase{"pingpong 64x64 sharing K", 64, 64, Type::bf16, 2},
        ProductCase{"cooperative 128x128 cluster 1 e4m3", 128, 128, Type::e4m3},
        ProductCase{"cooperative 128x128 cluster 2 e4m3", 128, 128, Type::e4m3},
        ProductCase{"pingpong 64x128 cluster 1 e4m3", 64, 128, Type::e4m3}, ProductCase{"sm80 128x128", 128, 128},
        ProductCase{"plain", 64, 64}})
    expect_nothing_stored(GetParam(), p);
}

INSTANTIATE_TEST_SUITE_P(Operators, GpuSentinel,
                         testing::Values(Operator::all_gather_gemm, Operator::gemm_reduce_scatter,
                                         Operator::gemm_all_to_all, Operator::gemm_all_reduce),
                         [](const auto& test) { return std::string(name_of(test.param)); });

TEST(GpuSentinel, FailedReductionsStoreNothing) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  for (const char* kernel : {"pingpong 64x64 cluster 1", "plain"})
    for (const Reducer reducer : {Reducer::tail, Reducer::reserved})
      for (const Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_reduce})
        expect_nothing_stored(op, {kernel, 64, 64, Type::bf16, 1, reducer});
  expect_nothing_stored(Operator::gemm_all_reduce,
                        {"pingpong 64x64 cluster 1", 64, 64, Type::bf16, 1, Reducer::tile, true});
}

// ------------------------------------------------------------------------------------- library collectives

/// Ranks are processes on one GPU, which wait for each other in time slices. Behind the collective that fails stand
/// local copies, sums, and further collectives.
void expect_nothing_stored_behind_nccl(const Plan& plan, const std::string& what) {
  SCOPED_TRACE(what);
  static Pace slow{std::chrono::milliseconds(2500), std::chrono::milliseconds(20000)};
  constexpr double slow_limit = 5;
  ASSERT_FALSE(check(plan).has_value());
  test::SharedArray<Progress> progress(1);
  Trouble trouble;
  test::on_world(plan.problem.ranks, {.heap_bytes = 1 << 20, .wait_limit = slow_limit}, [&](World& world) {
    try {
      run_product(world, plan, {"", 0, 0, plan.problem.type}, what, progress[0], trouble, &slow);
    } catch (const std::exception& error) {
      progress[0].left = true;
      trouble.add(what + ": " + error.what());
      world.fail(error.what());
    }
    return 0;
  });
  test::expect_none(0, trouble);
}

Problem of_four(Operator op) { return {op, 512, 512, 512, 4, Type::fp16}; }

class GpuSentinelOfLibraries : public testing::TestWithParam<Operator> {};

TEST_P(GpuSentinelOfLibraries, AFailedSignaledPlanStoresNothing) {
  NEEDS_SHARING(4);
  const bool packed = GetParam() == Operator::gemm_all_reduce;
  const Knobs k{.tile_m = 64,
                .tile_n = 64,
                .groups = packed ? GroupSizes{16, 48} : GroupSizes{1, 1},
                .packed = packed,
                .kept_free = 8,
                .partial = Type::fp16};
  expect_nothing_stored_behind_nccl(make_plan(of_four(GetParam()), Strategy::signaled, k),
                                    std::string(name_of(GetParam())) + " signaled");
}

TEST_P(GpuSentinelOfLibraries, AFailedDecomposedPlanStoresNothing) {
  NEEDS_SHARING(4);
  expect_nothing_stored_behind_nccl(make_plan(of_four(GetParam()), Strategy::decomposed, {.partial = Type::fp16}),
                                    std::string(name_of(GetParam())) + " decomposed");
}

INSTANTIATE_TEST_SUITE_P(Operators, GpuSentinelOfLibraries,
                         testing::Values(Operator::all_gather_gemm, Operator::gemm_reduce_scatter,
                                         Operator::gemm_all_to_all, Operator::gemm_all_reduce),
                         [](const auto& test) { return std::string(name_of(test.param)); });

// --------------------------------------------------------------------------------------------- collectives

/// A call of `count` elements of bf16, or of rows of `hidden`.
struct CollectiveCase {
  const char* name;
  std::function<void(CudaCollectives&, std::byte* in, std::byte* out, cudaStream_t)> call;
};

constexpr std::int64_t count = 1 << 16, hidden = 1024;
constexpr std::size_t area = std::size_t{8} * count * 2;  // blocks for eight ranks

std::vector<CollectiveCase> all_collectives() {
  std::vector<CollectiveCase> list;
  const auto exact = [&](const char* name, const ExactKnobs& knobs) {
    list.push_back({name, [knobs](CudaCollectives& c, std::byte* in, std::byte* out, cudaStream_t stream) {
                      c.all_reduce(in, out, count, Type::bf16, stream, knobs);
                    }});
  };
  const auto quantized = [&](const char* name, const char* codec, const QuantizedKnobs& knobs) {
    list.push_back({name, [=](CudaCollectives& c, std::byte* in, std::byte* out, cudaStream_t stream) {
                      c.all_reduce(in, out, count, Type::bf16, parse_codec_pair(codec), stream, knobs);
                    }});
  };
  const auto norm = [&](const char* name, const RmsNormKnobs& knobs) {
    list.push_back({name, [knobs](CudaCollectives& c, std::byte* in, std::byte* out, cudaStream_t stream) {
                      const collectives::RmsNormOperands operands{in, nullptr, in + area / 2, out, out + area / 2};
                      c.all_reduce_rms_norm(operands, count / hidden, hidden, 1e-5f, Type::bf16, stream, knobs);
                    }});
  };
  exact("one shot", {.algorithm = ExactAlgorithm::one_shot});
  exact("two shot", {.algorithm = ExactAlgorithm::two_shot});
  exact("two shot, few slots",
        {.algorithm = ExactAlgorithm::two_shot, .blocks = 2, .threads = 64, .batch = 1, .slots = 3});
  norm("RMSNorm, one shot", {.algorithm = ExactAlgorithm::one_shot});
  norm("RMSNorm, two shot", {.algorithm = ExactAlgorithm::two_shot, .blocks = 2, .cluster = 1});
  norm("RMSNorm, two shot, clusters", {.algorithm = ExactAlgorithm::two_shot, .blocks = 2, .cluster = 2});
  quantized("packets", "int8", {.way = QuantizedWay::packets});
  quantized("staged", "int8", {.way = QuantizedWay::copies});
  quantized("staged, few slots", "int8", {.blocks = 1, .span = 64, .slots = 3, .way = QuantizedWay::copies});
  quantized("any codec", "int5-asym", {.blocks = 1, .span = 64, .slots = 3, .way = QuantizedWay::copies});
  quantized("with a tolerance", "int8", {.blocks = 1, .span = 64, .slots = 3, .tolerance = 1});
  quantized("one step", "int8", {.blocks = 1, .span = 64, .slots = 3, .steps = QuantizedSteps::one_shot});
  quantized("ring", "int8", {.blocks = 1, .span = 64, .steps = QuantizedSteps::ring});
  for (const ExchangeKind kind : {ExchangeKind::reduce_scatter, ExchangeKind::all_gather, ExchangeKind::all_to_all}) {
    const bool gather = kind == ExchangeKind::all_gather, scatter = kind == ExchangeKind::reduce_scatter;
    list.push_back({gather    ? "all_gather"
                    : scatter ? "reduce_scatter"
                              : "all_to_all",
                    [kind](CudaCollectives& c, std::byte* in, std::byte* out, cudaStream_t stream) {
                      c.exchange(kind, in, out, count, Type::bf16, stream, {.blocks = 2});
                    }});
    list.push_back({gather    ? "quantized all_gather"
                    : scatter ? "quantized reduce_scatter"
                              : "quantized all_to_all",
                    [kind](CudaCollectives& c, std::byte* in, std::byte* out, cudaStream_t stream) {
                      c.exchange(kind, in, out, count, Type::bf16, parse_codec("int8"), stream);
                    }});
  }
  list.push_back({"vote", [](CudaCollectives& c, std::byte* in, std::byte* out, cudaStream_t stream) {
                    const CodecPair pair = parse_codec_pair("int8");
                    c.vote(in, count, Type::bf16, pair, QuantizedSteps::two_shot, 1, stream);
                    c.all_reduce(in, out, count, Type::bf16, pair, stream,
                                 QuantizedKnobs{.tolerance = 1, .turn = Turn::unless_exact});
                    c.all_reduce(in, out, count, Type::bf16, stream,
                                 ExactKnobs{.algorithm = ExactAlgorithm::two_shot, .turn = Turn::if_exact});
                  }});
  return list;
}

void expect_nothing_stored(const CollectiveCase& collective) {
  const int ranks = std::min(4, test::most_ranks());
  Progress progress;
  Trouble trouble;
  test::run_collectives(ranks, {.workspace_bytes = test::small_workspace(ranks)}, limit, trouble,
                        [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
                          const cuda::RawMemory in = filled(area, 0x3c), out = filled(area, 0x3c);
                          test::meet_if_sharing(world);
                          Subject s;
                          s.stream = stream;
                          s.call = [&] {
                            collective.call(collectives, static_cast<std::byte*>(in.get()),
                                            static_cast<std::byte*>(out.get()), stream);
                          };
                          s.finish = [&] { collectives.finish(stream); };
                          s.change_input = [&] { IMBREX_CUDA_TRY(cudaMemsetAsync(in.get(), 0x38, area, stream)); };
                          s.memory = [&] { return collectives.own_workspace(); };
                          try {
                            run_ranks(world, s, collective.name, progress, t);
                          } catch (const std::exception& error) {
                            progress.left = true;
                            t.add(std::string(collective.name) + ": " + error.what());
                          }
                          world.fail("the test is over");
                        });
  test::expect_none(0, trouble);
}

class GpuSentinelCollective : public testing::TestWithParam<CollectiveCase> {};

TEST_P(GpuSentinelCollective, StoresNothingOnceItFailed) {
  NEEDS_GPUS(2);
  NEEDS_THREADS;
  expect_nothing_stored(GetParam());
}

// A test each, so that one that does not end is known by its name.
INSTANTIATE_TEST_SUITE_P(All, GpuSentinelCollective, testing::ValuesIn(all_collectives()), [](const auto& test) {
  std::string name = test.param.name;
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
});

// ------------------------------------------------------------------------------------------- the host's word

// A rank's host knows that the world has failed, another one's does not: the call of the other, which waits for a third
// rank, ends all the same.
TEST(GpuSentinel, WhatAHostKnowsEndsCallsOfItsPeers) {
  NEEDS_GPUS(3);
  NEEDS_THREADS;
  Trouble trouble;
  std::atomic<int> ended = 0;
  test::run_collectives(3, {}, 30, trouble,
                        [&](World& world, CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
                          const cuda::RawMemory memory = filled(1 << 15, 0);
                          test::meet_if_sharing(world);
                          world.barrier();
                          if (world.rank() < 2)
                            collectives.all_reduce(memory.get(), memory.get(), 1 << 14, Type::bf16, stream,
                                                   {.algorithm = ExactAlgorithm::one_shot});
                          std::this_thread::sleep_for(std::chrono::milliseconds(200));
                          if (world.rank() == 0) collectives.abort();
                          const auto over = [&] { return cudaStreamQuery(stream) != cudaErrorNotReady; };
                          if (!await(over, std::chrono::seconds(5)))
                            t.add("rank " + std::to_string(world.rank()) + " still waits");
                          cudaGetLastError();
                          ++ended;
                          await([&] { return ended == 3; });
                          world.fail("the test is over");
                        });
  test::expect_none(0, trouble);
}

}  // namespace
}  // namespace imbrex
