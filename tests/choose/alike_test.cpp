// What measured problems tell about others.
#include "choose/alike.hpp"
#include "choose/four_h200.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "choose/kernel_tiles.hpp"
#include "choose/quick_times.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::four_h200;

const records::Records& table() { return records::records_of("NVIDIA H200"); }

plan::Candidate fused(std::int64_t tile_m, std::int64_t tile_n, int cluster, int group) {
  plan::Candidate c{Strategy::fused, {}};
  c.knobs.tile_m = tile_m, c.knobs.tile_n = tile_n, c.knobs.cluster = cluster, c.knobs.group = group;
  c.knobs.transport = Transport::store;
  return c;
}

// With the times of analytical cost models.
records::Record record(std::int64_t m, const plan::Candidate& candidate, std::int64_t n = 8192, std::int64_t k = 8192) {
  records::Record r{{Operator::gemm_all_to_all, m, n, k, 4, Type::bf16}, 0, 0, candidate, 0, 0};
  r.seconds = choose::quick_seconds(r.problem, candidate, four_h200());
  r.sequential_seconds = choose::quick_seconds(r.problem, choose::library_sequence(r.problem), four_h200());
  return r;
}

Problem problem(std::int64_t m, std::int64_t n = 8192, std::int64_t k = 8192) {
  return {Operator::gemm_all_to_all, m, n, k, 4, Type::bf16};
}

TEST(Alike, AMeasuredProblemGetsItsOwnPlan) {
  for (const records::Record& r : table().list) {
    Problem p = r.problem;
    const auto chosen = choose::choose_alike(table(), p, {}, four_h200(), true);
    ASSERT_TRUE(chosen);
    EXPECT_EQ(chosen->strategy, r.candidate.strategy);
    EXPECT_EQ(chosen->knobs, r.candidate.knobs);
    p.bias = true;
    EXPECT_EQ(choose::choose_alike(table(), p, {}, four_h200(), true)->knobs, r.candidate.knobs);
    p.lda = p.k + 8, p.ldb = p.n + p.k, p.ldo = p.n + 8;
    EXPECT_EQ(choose::choose_alike(table(), p, {}, four_h200(), true)->knobs, r.candidate.knobs);
  }
}

TEST(Alike, NearerOnesCountMore) {
  records::Records records{"Some GPU", "2026-11-21", {}};
  for (const std::int64_t m : {1024, 4096, 16384})
    records.list.push_back(record(m, fused(128, 128, 2, static_cast<int>(m / 1024))));
  records::set_ranges(records);
  const auto group = [&](const Problem& p) {
    const auto chosen = choose::choose_alike(records, p, Strategy::fused, four_h200(), true);
    return chosen ? chosen->knobs.group : 0;
  };
  EXPECT_EQ(group(problem(1280)), 1);
  EXPECT_EQ(group(problem(1536)), 1);
  EXPECT_EQ(group(problem(3584)), 4);
  EXPECT_EQ(group(problem(12288)), 16);
  // Many rows are all alike.
  EXPECT_EQ(group(problem(1 << 20)), 16);
}

TEST(Alike, FewRowsAreAlike) {
  records::Records records{
      "Some GPU", "2026-11-21", {record(16, fused(64, 64, 1, 1)), record(1024, fused(128, 128, 2, 2))}};
  records::set_ranges(records);
  EXPECT_EQ(choose::choose_alike(records, problem(4), Strategy::fused, four_h200(), true)->knobs.group, 1);
  EXPECT_EQ(choose::choose_alike(records, problem(100), Strategy::fused, four_h200(), true)->knobs.group, 1);
}

// The problem's own kind of scales counts; far from all of those in M, another's does.
TEST(Alike, KindsOfScalesAreToldApart) {
  const auto with = [](std::int64_t m, Scales scales, int group) {
    records::Record r = record(m, fused(128, 128, 2, group));
    r.problem.type = Type::e4m3;
    r.problem.scales = scales;
    return r;
  };
  records::Records records{
      "Some GPU",
      "2026-11-21",
      {with(64, Scales::row, 3), with(64, Scales::tensor, 2), with(256, Scales::row, 4), with(64, Scales::none, 1)}};
  records::set_ranges(records);
  const auto group = [&](Scales scales, std::int64_t m) {
    Problem p = problem(m);
    p.type = Type::e4m3;
    p.scales = scales;
    return choose::choose_alike(records, p, Strategy::fused, four_h200(), true)->knobs.group;
  };
  EXPECT_EQ(group(Scales::none, 128), 1);
  EXPECT_EQ(group(Scales::tensor, 128), 2);
  EXPECT_EQ(group(Scales::row, 128), 3);
  EXPECT_EQ(group(Scales::row, 512), 4);
  EXPECT_EQ(group(Scales::tensor, 512), 4);
}

// A plan suits both layouts, wherever a kernel takes both.
TEST(Alike, AnotherLayoutOfBServesWhereItsOwnIsNotMeasured) {
  records::Records records{"Some GPU", "2026-11-21", {record(1024, fused(128, 128, 2, 1))}};
  records::set_ranges(records);
  Problem p = problem(1024);
  p.b_layout = Layout::column_major;
  const auto group = [&] { return choose::choose_alike(records, p, {}, four_h200(), true)->knobs.group; };
  EXPECT_EQ(group(), 1);
  records.list.push_back(record(1024, fused(128, 128, 2, 2)));
  records.list.back().problem.b_layout = Layout::column_major;
  EXPECT_EQ(group(), 2);
  p.b_layout = Layout::row_major;
  EXPECT_EQ(group(), 1);
}

TEST(Alike, NothingFarServes) {
  records::Records records{"Some GPU", "2026-11-21", {record(1024, fused(128, 128, 2, 1))}};
  records::set_ranges(records);
  const auto serves = [&](const Problem& p, std::optional<Strategy> strategy = {}) {
    return choose::choose_alike(records, p, strategy, four_h200(), true).has_value();
  };
  EXPECT_TRUE(serves(problem(4096)));
  EXPECT_FALSE(serves(problem(4224)));
  EXPECT_TRUE(serves(problem(1024, 8 * 8192)));
  EXPECT_FALSE(serves(problem(1024, 9 * 8192)));
  EXPECT_FALSE(serves(problem(1024, 8192, 9 * 8192)));
  Problem p = problem(1024);
  p.type = Type::fp16;
  EXPECT_TRUE(serves(p));
  p.type = Type::fp32;
  EXPECT_FALSE(serves(p));
  p = problem(1024);
  p.ranks = 2;
  EXPECT_FALSE(serves(p));
  p = problem(1024);
  p.op = Operator::gemm_all_reduce;
  EXPECT_FALSE(serves(p));
  EXPECT_FALSE(serves(problem(1000), Strategy::decomposed));
  EXPECT_TRUE(serves(problem(1000), Strategy::fused));
  EXPECT_FALSE(choose::choose_alike({"Some GPU", "", {}}, problem(1024), {}, four_h200(), true).has_value());
}

// Each rank multiplies what each of the nearest number did.
TEST(Alike, OtherNumbersOfRanksTakeTheNearests) {
  records::Records records{"Some GPU", "2026-11-23", {}};
  for (const int ranks : {2, 4})
    for (const std::int64_t n : {4096, 16384}) {
      records::Record r = record(4096, fused(128, 128, 2, static_cast<int>(ranks * 10 + n / 4096)));
      r.problem = {Operator::all_gather_gemm, 4096, n * ranks, 8192, ranks, Type::bf16};
      r.seconds = 0.7 * choose::quick_seconds(r.problem, choose::library_sequence(r.problem), four_h200());
      r.sequential_seconds = r.seconds / 0.7;
      records.list.push_back(r);
    }
  records::set_ranges(records);
  const auto group = [&](int ranks, std::int64_t n, bool other_ranks = true) {
    const Problem p{Operator::all_gather_gemm, 4096 / ranks * ranks, n * ranks, 8192, ranks, Type::bf16};
    const auto chosen = choose::choose_alike(records, p, {}, four_h200(), true, other_ranks);
    return chosen ? chosen->knobs.group : -1;
  };
  EXPECT_EQ(group(8, 4096), 41);
  EXPECT_EQ(group(8, 16384), 44);
  EXPECT_EQ(group(32, 16384), 44);
  EXPECT_EQ(group(3, 4096), 41);
  EXPECT_EQ(group(1, 4096), -1);
  EXPECT_EQ(group(2, 16384), 24);
  EXPECT_EQ(group(8, 4096, false), -1);
  // At any distance, but not of its own number of ranks.
  EXPECT_NE(group(8, 128), -1);
  EXPECT_EQ(group(4, 128), -1);
}

// What two GPUs showed, beside what four did.
TEST(Alike, TwoRanksTellOfFour) {
  records::Records of_two = table();
  std::erase_if(of_two.list, [](const records::Record& r) { return r.problem.ranks != 2; });
  const auto kind = [](const plan::Candidate& c) {
    return std::pair(c.strategy, c.knobs.transport == Transport::store);
  };
  int all = 0, same_kind = 0, fused = 0, same_tile = 0;
  for (const records::Record& r : table().list) {
    if (r.problem.ranks != 4) continue;
    const auto chosen = choose::choose_alike(of_two, r.problem, {}, four_h200(), true, true);
    ASSERT_TRUE(chosen);
    const bool is_fused = r.candidate.strategy == Strategy::fused;
    const Knobs &k = chosen->knobs, &measured = r.candidate.knobs;
    ++all;
    fused += is_fused;
    same_kind += is_fused ? chosen->strategy == Strategy::fused : kind(*chosen) == kind(r.candidate);
    same_tile += is_fused && kind(*chosen) == kind(r.candidate) &&
                 std::tuple(k.tile_m, k.tile_n) == std::tuple(measured.tile_m, measured.tile_n);
  }
  std::cout << same_kind << " of " << all << " of the same kind, " << same_tile << " of " << fused
            << " fused ones with the same tile and transport\n";
  EXPECT_GT(10 * same_kind, 8 * all);
  EXPECT_GT(10 * same_tile, 8 * fused);
}

TEST(Alike, MoreRanksThanOwnCollectivesTakeGoToTheLibrary) {
  plan::Candidate own = choose::library_sequence(problem(64));
  own.knobs.transport = Transport::store;
  records::Records records{"Some GPU", "2026-11-23", {record(64, own)}};
  records::set_ranges(records);
  Problem p = problem(64);
  p.ranks = choose::most_own_ranks;
  EXPECT_EQ(choose::choose_alike(records, p, {}, four_h200(), true, true)->knobs, own.knobs);
  p.ranks = 2 * choose::most_own_ranks;
  EXPECT_EQ(choose::choose_alike(records, p, {}, four_h200(), true, true)->knobs, choose::library_sequence(p).knobs);
  EXPECT_FALSE(choose::choose_alike(records, p, Strategy::fused, four_h200(), true, true).has_value());
}

// Measured on two H200s in 2026-11: the plan of 256 rows, two tiles a shard where one was, took twice as long as cuBLAS
// and NCCL.
TEST(Alike, TilesThatDoNotFillWorkersLoseTheirAdvantage) {
  const Problem p{Operator::all_gather_gemm, 300, 5120, 27648, 2, Type::bf16};
  const auto chosen = choose::choose_alike(table(), p, {}, four_h200(), true);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->strategy, Strategy::sequential);
  EXPECT_EQ(chosen->knobs.transport, Transport::store);
  // Asked for fused plans, it still says which.
  EXPECT_EQ(choose::choose_alike(table(), p, Strategy::fused, four_h200(), true)->strategy, Strategy::fused);
}

TEST(Alike, OwnCollectivesStandBehindProductsOfAnyRows) {
  plan::Candidate own = choose::library_sequence(problem(1024));
  own.knobs.transport = Transport::store;
  records::Records records{"Some GPU", "2026-11-21", {record(1024, own)}};
  records::set_ranges(records);
  EXPECT_EQ(choose::choose_alike(records, problem(900), {}, four_h200(), true)->knobs, own.knobs);
  EXPECT_EQ(choose::choose_alike(records, problem(1028), {}, four_h200(), true)->knobs, own.knobs);
  // Which of a library's tiles suits its product, tells nothing of another's.
  records.list[0].candidate.knobs.library_tile = 24;
  EXPECT_EQ(choose::choose_alike(records, problem(1024), {}, four_h200(), true)->knobs.library_tile, 24);
  EXPECT_EQ(choose::choose_alike(records, problem(900), {}, four_h200(), true)->knobs, own.knobs);
}

TEST(Alike, TheLibrarysSequenceWhereNothingIsFaster) {
  records::Record slow = record(1024, fused(128, 128, 2, 8));
  slow.seconds = 1.3 * slow.sequential_seconds;
  records::Records records{"Some GPU", "2026-11-21", {slow}};
  records::set_ranges(records);
  const auto chosen = choose::choose_alike(records, problem(1152), {}, four_h200(), true);
  ASSERT_TRUE(chosen);
  EXPECT_EQ(chosen->strategy, Strategy::sequential);
  // Imbrex' own collectives stand in for the library's, of many rows where the machine has them as faster.
  plan::Candidate own = choose::library_sequence(problem(16));
  own.knobs.transport = Transport::store;
  EXPECT_EQ(chosen->knobs, own.knobs);
  Machine slow_links = four_h200();
  for (CurvePoint& point : slow_links.own_one_step.points) point.seconds *= 10;
  for (CurvePoint& point : slow_links.own_two_steps.points) point.seconds *= 10;
  EXPECT_EQ(choose::choose_alike(records, problem(1152), {}, slow_links, true)->knobs,
            choose::library_sequence(problem(1152)).knobs);

  // They do of few rows where the table knows that they run.
  records.list.push_back(record(16, own));
  records::set_ranges(records);
  EXPECT_EQ(choose::choose_alike(records, problem(896), {}, four_h200(), true)->knobs, own.knobs);
}

TEST(Alike, PairsAndSharedKDependOnTheTiles) {
  plan::Candidate sharing = fused(64, 64, 1, 8);
  sharing.knobs.cluster_k = 2;
  sharing.knobs.span_shards = true;
  records::Records records{"Some GPU", "2026-11-21", {record(64, sharing, 4096), record(1024, fused(128, 128, 2, 8))}};
  records::set_ranges(records);
  const auto knobs = [&](const Problem& p) {
    return choose::choose_alike(records, p, Strategy::fused, four_h200(), true)->knobs;
  };
  // Three tiles a shard: whether in pairs, the executor knows.
  EXPECT_EQ(knobs(problem(4 * 384)).cluster, 0);
  EXPECT_EQ(knobs(problem(1024)).cluster, 2);
  records.list.pop_back();
  EXPECT_EQ(knobs(problem(32, 4096)).cluster_k, 2);
  // More tiles than half of the workers: nothing says that these are fast without.
  EXPECT_FALSE(choose::choose_alike(records, problem(256, 16384), {}, four_h200(), true).has_value());
}

}  // namespace
}  // namespace imbrex
