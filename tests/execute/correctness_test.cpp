// Every operator, strategy and type is right on random problems: each element within its bound of a float64 reference,
// the same bits from run to run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <utility>

#include "program/run.hpp"
#include "support/random_run.hpp"

namespace imbrex {
namespace {

// 4 operators x 3 strategies x 4 types, at least this many problems each.
constexpr int problems_per_combination = 9;

TEST(Correctness, RandomProblems) {
  test::Random random(test::seed_from_environment());
  int count = 0;
  double closest = 0;
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (Strategy strategy : {Strategy::sequential, Strategy::decomposed, Strategy::fused})
      for (Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
        for (int i = 0; i < problems_per_combination; ++i) {
          Problem problem;
          do problem = test::random_problem(random, {.max_ranks = 8, .max_size = i == 0 ? 700 : 300, .bias = true});
          while (problem.op != op);
          test::set_type(random, problem, type);
          const Knobs knobs = test::random_knobs(random, problem, strategy);
          closest = std::max(closest, test::expect_right(random, {problem, strategy, knobs}));
          if (testing::Test::HasFailure()) return;
          ++count;
        }
  std::cout << count << " problems; the largest error was " << closest << " of its bound\n";
  EXPECT_GE(count, 300);
}

// Ends of rows and columns everywhere, and all ways of grouping them.
TEST(Correctness, SignaledPlansOfAnyGroups) {
  test::Random random(test::seed_from_environment());
  double closest = 0;
  for (int i = 0; i < 300; ++i) {
    test::RandomCase c{test::random_problem(random, {.max_ranks = 8, .max_size = 200, .bias = true, .e4m3 = true}),
                       Strategy::signaled,
                       {}};
    c.knobs = test::random_knobs(random, c.problem, c.strategy);
    c.knobs.tile_m = random.one_of<std::int64_t>({8, 16, 48});
    c.knobs.tile_n = random.one_of<std::int64_t>({8, 16, 56});
    test::set_groups(random, c.problem, c.knobs, 5);
    closest = std::max(closest, test::expect_right(random, c));
    if (testing::Test::HasFailure()) return;
  }
  std::cout << "the largest error was " << closest << " of its bound\n";
}

// Rings of 1 to 8 ranks, whose blocks and chunks may have a row: exactly right with delays, and within their bounds.
TEST(Correctness, DecomposedGathersOfAnyBlocks) {
  test::Random random(test::seed_from_environment());
  double closest = 0;
  int rings = 0;
  for (int i = 0; i < 160; ++i) {
    Problem p{Operator::all_gather_gemm, 0, 0, random.between(1, 90), 1 + i % 8};
    p.m = random.between(1, i % 3 == 0 ? 6 : 60) * p.ranks;
    p.n = random.between(1, 40) * p.ranks;
    p.bias = random.chance(0.3);
    test::set_type(random, p, random.one_of({Type::bf16, Type::fp16, Type::fp32, Type::e4m3}));
    if (random.chance(0.4)) test::add_further(random, p, 100);
    if (p.type != Type::e4m3 && random.chance(0.3)) test::add_pitches(random, p);
    test::RandomCase c{p, Strategy::decomposed, test::random_knobs(random, p, Strategy::decomposed)};
    closest = std::max(closest, test::expect_right(random, c));
    c.problem.scales = Scales::none;
    c.problem.type = c.knobs.partial = Type::fp32;
    test::expect_exact(random, c, i);
    if (testing::Test::HasFailure()) return;
    rings += p.ranks > 1;
  }
  std::cout << "the largest error was " << closest << " of its bound\n";
  EXPECT_EQ(rings, 140);
}

// Every way to cut six rows of tiles, or six tiles, in up to five groups.
TEST(Correctness, SignaledPlansOfAllPartitions) {
  test::Random random(test::seed_from_environment());
  int number = 0;
  for (const bool packed : {false, true})
    for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                              Operator::gemm_all_to_all})
      for (unsigned cuts = 0; cuts < 32; ++cuts) {  // bit i: a group ends after unit i
        if ((packed && op != Operator::gemm_all_reduce) || cuts == 31) continue;
        const int ranks = static_cast<int>(random.between(2, 4));
        const std::int64_t part = packed ? 16 : 8 * 5 + 3;
        Problem p{op, op == Operator::gemm_all_reduce ? part : part * ranks, 24, 12, ranks, Type::fp32};
        if (op == Operator::all_gather_gemm) p.n *= ranks;
        if (op == Operator::gemm_reduce_scatter || op == Operator::gemm_all_reduce) p.k *= ranks;
        Knobs k{.tile_m = 8, .tile_n = 8, .packed = packed};
        int size = 0;
        for (std::size_t unit = 0, group = 0; unit < 6; ++unit) {
          ++size;
          if (unit == 5 || (cuts >> unit & 1u) != 0) k.groups[group++] = std::exchange(size, 0);
        }
        test::expect_exact(random, {p, Strategy::signaled, k}, number++);
        if (HasFailure()) return;
      }
  EXPECT_EQ(number, 5 * 31);
}

// K deep enough for five parts on each of up to four ranks.
TEST(Correctness, ProductsCutAlongK) {
  test::Random random(test::seed_from_environment());
  double closest = 0;
  for (Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
    for (Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                        Operator::gemm_all_to_all})
      for (int parts = 2; parts <= 5; ++parts) {
        test::RandomCase c{{}, Strategy::fused, {}};
        do c.problem = test::random_problem(random, {.max_ranks = 4, .max_size = 150, .bias = true});
        while (c.problem.op != op);
        test::set_type(random, c.problem, type);
        const bool sharded = op == Operator::gemm_reduce_scatter || op == Operator::gemm_all_reduce;
        c.problem.k = random.between(129, 800) * (sharded ? c.problem.ranks : 1);
        c.knobs = test::random_knobs(random, c.problem, c.strategy);
        c.knobs.split_k = parts;
        if (parts > 1) c.knobs.cluster_k = 1;
        closest = std::max(closest, test::expect_right(random, c));
        if (testing::Test::HasFailure()) return;
      }
  std::cout << "the largest error was " << closest << " of its bound\n";
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Correctness, ProcessesAndThreadsGiveTheSameBits) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("imbrex_bits_" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  for (bool threads : {false, true}) {
    program::RunRequest request;
    request.problem = {Operator::gemm_all_reduce, 130, 90, 120, 4, Type::bf16};
    request.strategy = Strategy::fused;
    request.verify = true;
    request.repeat = 3;
    request.threads = threads;
    request.out_prefix = (folder / (threads ? "threads" : "processes")).string();
    EXPECT_EQ(run(request, [](const program::RunResult& r) { EXPECT_TRUE(r.verified) << r.message; }), 0);
  }
  const std::string first = contents(folder / "processes.rank0.npy");
  EXPECT_EQ(first.size(), 128u + 130 * 90 * 4);
  // An all-reduce gives every rank the same bits.
  for (const char* world : {"processes", "threads"})
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(contents(folder / (std::string(world) + ".rank" + std::to_string(rank) + ".npy")), first);
  std::filesystem::remove_all(folder);
}

TEST(Correctness, SixtyFourRanks) {
  program::RunRequest request;
  request.problem = {Operator::gemm_reduce_scatter, 128, 40, 192, 64, Type::fp32};
  request.strategy = Strategy::fused;
  request.verify = true;
  request.threads = true;
  EXPECT_EQ(run(request, [](const program::RunResult& r) { EXPECT_TRUE(r.verified) << r.message; }), 0);
}

}  // namespace
}  // namespace imbrex
