// Plans on GPUs: every element within its bound of a float64 reference, the same bits every time, with and without
// injected delays; and waits that end.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iostream>
#include <optional>

#include "execute/cuda/products/variants.hpp"
#include "execute/cuda/tables/translate.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::cases;
using test::expect_right;
using test::GpuCase;
using test::Outcome;
using test::Random;

struct Tile {
  std::int64_t m, n;
};

Knobs fitting(Random& random, const Problem& p, Tile tile) {
  Knobs k;
  k.tile_m = tile.m;
  k.tile_n = tile.n;
  k.group = static_cast<int>(random.between(1, 9));
  k.own_shift = static_cast<int>(random.between(0, 6));
  k.abreast = static_cast<int>(random.between(0, 3));
  k.split_k = random.chance(0.5) ? 1 : static_cast<int>(random.between(2, 4));
  k.cluster_k = k.split_k == 1 && random.chance(0.5) ? 2 : 1;
  k.order = random.one_of({TileOrder::owner_major, TileOrder::column_major, TileOrder::naive});
  k.partial = random.chance(0.8) ? output_type(p.type) : Type::fp32;
  if (p.op == Operator::all_gather_gemm) {
    k.transport = random.one_of({Transport::push, Transport::store});
    k.comm_rows = random.chance(0.5) ? 0 : random.between(16, 400);
    k.k_slices = random.chance(0.5) ? 1 : static_cast<int>(random.between(2, 4));
    k.span_shards = random.chance(0.3) && p.scales != Scales::tensor;
    return k;
  }
  k.transport = Transport::store;
  k.reducer = random.one_of({Reducer::tile, Reducer::tile, Reducer::tail, Reducer::reserved});
  k.one_shot = p.op == Operator::gemm_all_reduce && random.chance(0.3);
  k.span_shards = random.chance(0.2);
  if ((k.one_shot || k.span_shards) && k.reducer == Reducer::tile) k.reducer = Reducer::tail;
  return k;
}

// Rows of whole 16 bytes, and of B by columns an even number of those, so that the tensor-core kernels take them; M has
// tails of every kind.
Problem random_problem(Random& random, Operator op, int ranks, std::int64_t most, Type type,
                       std::optional<Layout> b_layout = {}) {
  Problem p{op, 0, 0, 0, ranks, type};
  test::set_type(random, p, type);
  if (b_layout) p.b_layout = *b_layout;
  const std::int64_t depths = size_of(type) == 1 ? 16 : 8;  // of K, in 16 bytes
  const auto step = [&](const std::int64_t* size) -> std::int64_t {
    if (size == &p.m) return 1;
    return size == &p.k ? depths : random.chance(0.5) ? 8 : cuda::column_step(p);
  };
  const auto up_to = [&](std::int64_t limit, std::int64_t by) {
    return by * random.between(1, std::max<std::int64_t>(1, limit / by));
  };
  test::draw_sizes(
      p,
      [&](const std::int64_t* size) {
        // Some of the ranks' shares of K, too, are deep enough to be cut.
        const bool deep = size == &p.k && random.chance(0.5);
        return ranks * up_to(deep ? std::min<std::int64_t>(most, 900) : most / ranks, step(size));
      },
      [&](const std::int64_t* size) { return up_to(most, step(size)); });
  p.bias = random.chance(0.4);
  return p;
}

// One rank: the product alone, and with a bias, on every variant and for each layout of B that it takes.
TEST(GpuGemm, EveryVariantIsRightWithTails) {
  NEEDS_GPUS(1);
  Random random(test::seed_from_environment());
  std::vector<cuda::KernelTile> variants(std::begin(cuda::kernel_tiles), std::end(cuda::kernel_tiles));
  variants.push_back({"plain", Type::bf16, 128, 128, 1, false, false});
  variants.push_back({"plain e4m3", Type::e4m3, 128, 128, 1, false, false});
  for (const auto& [kernel, type, rows, cols, cluster, shares_k, hopper] : variants) {
    SCOPED_TRACE(kernel);
    std::vector<Plan> plans;
    std::vector<GpuCase> all;
    for (int i = 0; i < cases(4) * (type == Type::e4m3 ? 1 : 2); ++i) {
      const Layout layout = type != Type::e4m3 && i % 2 != 0 ? Layout::column_major : Layout::row_major;
      Problem p = random_problem(random, Operator::gemm_reduce_scatter, 1, i < 2 ? 2200 : 700, type, layout);
      p.bias = i / 2 % 2 != 0;
      Knobs k = fitting(random, p, {rows, cols});
      k.reducer = Reducer::tile;
      k.span_shards = false;
      k.cluster_k = shares_k ? 2 : 1;
      if (k.cluster_k > 1) k.split_k = 1;
      GpuCase c;
      c.options.kernel = kernel;
      c.whole_numbers = type == Type::e4m3 && i % 2 == 0;
      plans.push_back(make_plan(p, Strategy::fused, k));
      all.push_back(c);
    }
    test::expect_each_right(plans, all);
  }
}

// On the kernel that is named, whose tiles are of 128 x 128, or on what fits.
void random_problems(int ranks, const CudaOptions& options, int repeats, int queued, bool fp8 = false) {
  Random random(test::seed_from_environment() + static_cast<std::uint64_t>(ranks));
  std::vector<Plan> plans;
  std::vector<GpuCase> all;
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_to_all, Operator::gemm_all_reduce})
    for (int i = 0; i < cases(4); ++i) {
      const Type type = fp8 ? Type::e4m3 : random.chance(0.3) ? Type::fp16 : Type::bf16;
      const Problem p = random_problem(random, op, ranks, i == 0 ? 2600 : 900, type);
      Tile tile = random.one_of<Tile>({{128, 128},
                                       {128, 128},
                                       {128, 256},
                                       {128, 224},
                                       {128, 192},
                                       {64, 192},
                                       {64, 128},
                                       {64, 64},
                                       {64, 32},
                                       {128, 64}});
      if (fp8) tile.n = std::min<std::int64_t>(tile.n, 128);
      const Knobs k = fitting(random, p, options.kernel.empty() ? tile : Tile{128, 128});
      const char* only = std::getenv("IMBREX_TEST_GPU_OPERATOR");
      if (only != nullptr && name_of(op) != only) continue;
      GpuCase c;
      c.options = options;
      c.repeats = repeats;
      c.queued = queued;
      c.seed = static_cast<std::uint64_t>(i) + 7;
      c.shared_out = random.chance(0.5);
      c.whole_numbers = fp8 && i % 2 == 0;
      if (options.kernel == "sm80") {
        c.wait_limit = 30;  // the driver compiles it first, on one rank after another
        c.replays = 4;
      }
      const Plan plan = make_plan(p, Strategy::fused, k);
      if (!options.kernel.empty() && !cuda::refusal_of_tma(plan).empty()) continue;
      plans.push_back(plan);
      all.push_back(c);
    }
  test::expect_each_right(plans, all);
}

TEST(GpuFused, RandomProblemsOnTwo) {
  NEEDS_GPUS(2);
  random_problems(2, {}, 2, 1);
}

TEST(GpuFused, RandomProblemsOnFour) {
  NEEDS_GPUS(4);
  random_problems(4, {}, 2, 1);
}

TEST(GpuFused, ManyEpochsQueuedWithDelays) {
  NEEDS_GPUS(2);
  CudaOptions options;
  options.testing.delays = 77;
  options.testing.max_delay = 2e-4;
  random_problems(test::most_ranks(), options, 4, 3);
}

// Kernels that pause at random, epoch by epoch: a graph replays them with no help from the host.
void replay_with_delays(Problem p, Transport transport, int replays, int parts = 1, int cluster_k = 1) {
  Knobs k;
  k.split_k = parts;
  k.cluster_k = cluster_k;
  if (cluster_k > 1) k.tile_n = 64;  // such tiles have a kernel with split-K within a cluster
  k.transport = transport;
  k.order = TileOrder::column_major;
  k.own_shift = 1;
  GpuCase c;
  c.options.testing.delays = 5;
  c.options.testing.max_delay = 2e-5;
  c.options.heap_bytes = std::size_t{1} << 28;
  c.repeats = 1;
  c.replays = replays;
  c.shared_out = true;
  p.ranks = test::most_ranks();
  expect_right(make_plan(p, Strategy::fused, k), c, test::describe({p, Strategy::fused, k}));
}

TEST(GpuFp8, RandomProblems) {
  NEEDS_GPUS(2);
  for (int ranks = 2; ranks <= test::most_ranks(); ranks *= 2) random_problems(ranks, {}, 2, 1, true);
}

TEST(GpuFp8, ManyEpochsQueuedWithDelays) {
  NEEDS_GPUS(2);
  CudaOptions options;
  options.testing.delays = 79;
  options.testing.max_delay = 2e-4;
  random_problems(test::most_ranks(), options, 4, 3, true);
}

// Scales travel with the rows of A: by copies, by workers' stores, and over epochs from a graph.
TEST(GpuFp8, GatheredScalesComeWithTheirRows) {
  NEEDS_GPUS(2);
  for (const Scales scales : {Scales::tensor, Scales::row})
    for (const Transport transport : {Transport::push, Transport::store})
      replay_with_delays({Operator::all_gather_gemm, 520, 1024, 256, 4, Type::e4m3, false, scales}, transport, 1000);
}

// What other GPUs run, here from its PTX too.
TEST(GpuSm80, RandomProblems) {
  NEEDS_GPUS(2);
  CudaOptions options;
  options.kernel = "sm80";
  for (int ranks = 2; ranks <= test::most_ranks(); ranks *= 2) random_problems(ranks, options, 2, 1);
}

TEST(GpuSm80, ManyEpochsQueuedWithDelays) {
  NEEDS_GPUS(2);
  CudaOptions options;
  options.kernel = "sm80";
  options.testing.delays = 78;
  options.testing.max_delay = 2e-4;
  random_problems(test::most_ranks(), options, 4, 3);
}

// The kernel for tiles of 64 x 64 takes slots of 128 x 128, which come through its stages in its own way.
TEST(GpuFused, TilesSmallerThanTheirSlots) {
  NEEDS_GPUS(4);
  std::vector<Plan> plans;
  for (const std::int64_t n : {8, 56, 64, 128})
    for (const std::int64_t rows : {8, 32, 64})
      for (const int parts : {1, 3})
        plans.push_back(make_plan({Operator::gemm_reduce_scatter, 4 * rows, n, 4 * 128 * parts, 4, Type::bf16},
                                  Strategy::fused, {.transport = Transport::store, .split_k = parts}));
  expect_right(plans, GpuCase{});
}

// Slots in fp32 of the own rank beside those of its peers, epoch after epoch in one place.
TEST(GpuFused, PartsOfKOverManyEpochsWithDelays) {
  NEEDS_GPUS(2);
  for (const int parts : {2, 4}) {
    for (const Transport transport : {Transport::push, Transport::store})
      replay_with_delays({Operator::all_gather_gemm, 520, 1024, 1040, 4, Type::bf16}, transport, 1000, parts);
    for (Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_to_all, Operator::gemm_all_reduce})
      replay_with_delays({op, 1040, 768, 4 * 520, 4, Type::bf16}, Transport::store, 1000, parts);
    replay_with_delays({Operator::gemm_all_reduce, 300, 768, 4 * 1056, 4, Type::e4m3, false, Scales::row},
                       Transport::store, 1000, parts);
  }
}

// Two blocks' halves of every tile, epoch after epoch in one place.
TEST(GpuFused, SharedKOverManyEpochsWithDelays) {
  NEEDS_GPUS(2);
  for (const Transport transport : {Transport::push, Transport::store})
    replay_with_delays({Operator::all_gather_gemm, 520, 1024, 1048, 4, Type::bf16}, transport, 1000, 1, 2);
  for (Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_to_all, Operator::gemm_all_reduce})
    replay_with_delays({op, 1040, 768, 4 * 520, 4, Type::bf16}, Transport::store, 1000, 1, 2);
}

// The product alone: few rows, whose tiles are too few for all workers.
void few_rows(int parts, int cluster_k, std::initializer_list<Tile> tiles) {
  std::vector<Plan> plans;
  for (const std::int64_t m : {1, 16, 64, 100})
    for (const std::int64_t depth : {3600, 40})
      for (const Tile& tile : tiles) {
        Knobs k;
        k.tile_m = tile.m;
        k.tile_n = tile.n;
        k.split_k = parts;
        k.cluster_k = cluster_k;
        k.transport = Transport::store;
        const Problem p{Operator::gemm_all_reduce, m, 1032, depth, 1, Type::bf16, parts % 2 == 0};
        plans.push_back(make_plan(p, Strategy::fused, k));
      }
  expect_right(plans, GpuCase{});
}

TEST(GpuFused, PartsOfKOfFewRows) {
  NEEDS_GPUS(1);
  for (const int parts : {2, 3, 4})
    few_rows(parts, 1, {{64, 32}, {64, 64}, {64, 128}, {128, 64}, {128, 128}, {128, 256}});
}

TEST(GpuFused, SharedKOfFewRows) {
  NEEDS_GPUS(1);
  few_rows(1, 2, {{64, 32}, {64, 64}, {64, 128}, {64, 192}, {128, 64}});
}

TEST(GpuFused, TenThousandEpochsFromAGraphWithDelays) {
  NEEDS_GPUS(2);
  for (const Transport transport : {Transport::push, Transport::store})
    replay_with_delays({Operator::all_gather_gemm, 520, 1024, 256, 4, Type::bf16}, transport, 5000);
  for (Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_to_all, Operator::gemm_all_reduce})
    replay_with_delays({op, 1040, 768, 256, 4, Type::bf16}, Transport::store, 5000);
}

TEST(GpuFused, CountersWrap) {
  NEEDS_GPUS(2);
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_to_all, Operator::gemm_all_reduce})
    for (std::uint64_t first : {std::uint64_t{2} * (0xffffffffu / 3) - 3, (std::uint64_t{1} << 33) - 5}) {
      Knobs k;
      k.transport = op == Operator::all_gather_gemm ? Transport::push : Transport::store;
      GpuCase c;
      c.options.testing.first_epoch = first;
      c.repeats = 10;
      expect_right(make_plan({op, 300, 256, 128, 2, Type::bf16}, Strategy::fused, k), c,
                   std::string(name_of(op)) + " from epoch " + std::to_string(first));
    }
}

TEST(GpuPlain, AllTypesAndOddSizes) {
  NEEDS_GPUS(2);
  Random random(test::seed_from_environment() + 9);
  for (Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
    for (Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_to_all,
                        Operator::gemm_all_reduce}) {
      Problem p{op,   2 * random.between(1, 120), 2 * random.between(1, 90), 2 * random.between(1, 300), 2,
                type, random.chance(0.4)};
      test::set_type(random, p, type);
      Knobs k = fitting(random, p, {128, 128});
      k.tile_m = random.one_of<std::int64_t>({16, 48, 128});
      k.tile_n = random.one_of<std::int64_t>({24, 64, 128});
      GpuCase c;
      c.options.kernel = "plain";
      expect_right(make_plan(p, Strategy::fused, k), c, test::describe({p, Strategy::fused, k}));
    }
}

// Rank 1 keeps back the posts that rank 0 waits for: both ranks must end, naming what rank 0 waited for.
TEST(GpuWaits, PastTheirLimitNameRankTaskSignalExpectedAndSeen) {
  NEEDS_GPUS(2);
  for (const char* kernel : {"plain", "pingpong", "sm80"}) {
    Knobs k;
    k.transport = Transport::store;
    Plan plan = make_plan({Operator::gemm_reduce_scatter, 512, 256, 256, 2, Type::bf16}, Strategy::fused, k);
    GpuCase loads;
    loads.options.kernel = kernel;
    loads.wait_limit = 30;
    expect_right(plan, loads, kernel);
    for (Task& task : plan.ranks[1].queues[0].tasks) task.posts.clear();
    GpuCase c;
    c.options.kernel = kernel;
    c.wait_limit = 0.5;
    const Outcome outcome = test::run_on_gpus(plan, c);
    EXPECT_EQ(outcome.code, 3);
    EXPECT_NE(outcome.message.find("rank 0 queue 0 task"), std::string::npos) << outcome.message;
    EXPECT_NE(outcome.message.find("expected 1 posts, saw 0"), std::string::npos) << outcome.message;
    std::cout << kernel << ": " << outcome.message << '\n';
  }
  // The GPUs are free again.
  const Outcome after = test::run_on_gpus(make_plan({Operator::gemm_reduce_scatter, 256, 128, 64, 2, Type::bf16},
                                                    Strategy::fused, {.transport = Transport::store}),
                                          {});
  EXPECT_EQ(after.code, 0) << after.message;
  EXPECT_LE(after.worst, 1);
}

// A part that never comes.
TEST(GpuWaits, ForPartsOfKEndToo) {
  NEEDS_GPUS(1);
  for (const char* kernel : {"plain", "pingpong", "sm80"}) {
    Plan plan = make_plan({Operator::gemm_all_reduce, 128, 256, 512, 1, Type::bf16}, Strategy::fused,
                          {.transport = Transport::store, .split_k = 2});
    GpuCase c;
    c.options.kernel = kernel;
    c.wait_limit = 30;
    expect_right(plan, c, kernel);
    for (Task& task : plan.ranks[0].queues[0].tasks) task.posts.clear();
    c.wait_limit = 0.5;
    const Outcome outcome = test::run_on_gpus(plan, c);
    EXPECT_EQ(outcome.code, 3) << kernel;
    EXPECT_NE(outcome.message.find("expected 1 posts, saw 0"), std::string::npos) << outcome.message;
  }
}

TEST(GpuRefusals, SayWhatIsMissing) {
  NEEDS_OWN_GPUS(2);
  const Outcome outcome = test::run_on_gpus(make_plan({Operator::all_gather_gemm, 128, 64, 64, 2, Type::bf16},
                                                      Strategy::fused, {.transport = Transport::pull}),
                                            {});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.message.find("does not run copies that wait"), std::string::npos) << outcome.message;
}

}  // namespace
}  // namespace imbrex
