// Tables and ranks.
#include "imbrex/tables.hpp"

#include <gtest/gtest.h>

#include <random>

#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex::embedding {
namespace {

// DLRMv2's tables.
std::vector<EmbeddingTable> dlrm() {
  const std::int64_t rows[] = {40000000, 39060,    17295,    7424,     20265,  3,     7122, 1543, 63,
                               40000000, 3067956,  405282,   10,       2209,   11938, 155,  4,    976,
                               14,       40000000, 40000000, 40000000, 590152, 12973, 108,  36};
  const double hotness[] = {3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1};
  std::vector<EmbeddingTable> tables;
  for (std::size_t t = 0; t < std::size(rows); ++t) tables.push_back({rows[t], 128, hotness[t]});
  return tables;
}

void expect_whole(std::span<const EmbeddingTable> tables, const Placement& placed, const PlacementLimits& limits) {
  std::int32_t table = -1, column = 0;
  for (const EmbeddingShard& s : placed.shards) {
    if (s.table != table) {
      if (table >= 0) {
        EXPECT_EQ(column, tables[static_cast<std::size_t>(table)].dim);
      }
      EXPECT_EQ(s.table, table + 1);
      table = s.table, column = 0;
    }
    EXPECT_EQ(s.begin, column);
    EXPECT_LT(s.begin, s.end);
    EXPECT_EQ(s.begin % 8, 0);
    EXPECT_TRUE(s.rank >= 0 && s.rank < limits.ranks);
    column = s.end;
  }
  EXPECT_EQ(table + 1, std::ssize(tables));
  EXPECT_EQ(column, tables.back().dim);
  for (const RankLoad& rank : placed.ranks) EXPECT_TRUE(limits.memory == 0 || rank.memory <= limits.memory);
}

TEST(Placement, AHeavyTableIsCutByColumns) {
  const auto tables = dlrm();
  for (const std::int32_t ranks : {1, 2, 4, 8}) {
    const PlacementLimits limits{.ranks = ranks, .rows = TableRows::fp16, .out = Type::fp16};
    const Placement placed = place_tables(tables, limits);
    expect_whole(tables, placed, limits);
    EXPECT_LE(placed.balance, 1.03) << ranks << " ranks";
    int shards = 0;
    for (const EmbeddingShard& s : placed.shards) shards += s.table == 20 ? 1 : 0;
    EXPECT_EQ(shards > 1, ranks > 2) << ranks << " ranks";
  }
}

TEST(Placement, EqualTablesAreDealtWhole) {
  const std::vector<EmbeddingTable> tables(8, {1000, 64, 10});
  const PlacementLimits limits{.ranks = 4};
  const Placement placed = place_tables(tables, limits);
  EXPECT_EQ(placed.shards.size(), 8u);
  EXPECT_EQ(placed.balance, 1);
  EXPECT_EQ(placed.ranks[0].bytes, 2 * (10 * 260 + 256));
  EXPECT_EQ(placed.ranks[3].memory, 2 * 1000 * 256);
}

TEST(Placement, MemoryIsALimit) {
  // Lookups alone would put the three large tables, which are seldom read, on one rank.
  const std::vector<EmbeddingTable> tables{{1000, 64, 0.1}, {1000, 64, 0.1}, {1000, 64, 0.1}, {10, 64, 100}};
  PlacementLimits limits{.ranks = 2, .memory = 1000 * 256 * 3};
  expect_whole(tables, place_tables(tables, limits), limits);
  limits.memory = 1000 * 256 * 2;
  const Placement placed = place_tables(tables, limits);
  expect_whole(tables, placed, limits);
  // A table that is larger than a rank's memory is cut.
  const std::vector<EmbeddingTable> one{{1000, 256, 1}};
  limits = {.ranks = 4, .memory = 1000 * 256};
  EXPECT_EQ(place_tables(one, limits).shards.size(), 4u);
  limits.memory -= 1;
  try {
    place_tables(one, limits);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "tables of 1024000 bytes on 4 ranks of 255999 bytes each: no way was found that they fit");
  }
}

TEST(Placement, RandomTablesAreWhole) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < 200; ++i) {
    std::mt19937_64 random(seed + i);
    std::vector<EmbeddingTable> tables;
    const std::size_t count = 1 + random() % 40;
    for (std::size_t t = 0; t < count; ++t)
      tables.push_back({static_cast<std::int64_t>(1 + random() % 100000),
                        static_cast<std::int32_t>(4 + random() % 256 * 4), static_cast<double>(random() % 100)});
    const PlacementLimits limits{.ranks = static_cast<std::int32_t>(1 + random() % 8),
                                 .rows = static_cast<TableRows>(random() % 4)};
    const Placement placed = place_tables(tables, limits);
    expect_whole(tables, placed, limits);
    EXPECT_GE(placed.balance, 1 - 1e-12);
    double sum = 0;
    for (const RankLoad& rank : placed.ranks) sum += rank.bytes;
    EXPECT_GT(sum, 0);
  }
}

}  // namespace
}  // namespace imbrex::embedding
