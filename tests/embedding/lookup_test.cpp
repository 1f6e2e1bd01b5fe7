// Lookups on the CPU against sums in float64.
#include "embedding/lookup.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "base/convert.hpp"
#include "embedding/random_bags.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex::embedding {
namespace {

using test::RandomBags;

// The number of elements that are outside their bound.
std::int64_t faults(const RandomBags& c) {
  std::int64_t count = 0;
  for (std::int32_t t = 0; t < c.tables().count; ++t)
    for (std::int64_t b = 0; b < c.bags.batch; ++b) {
      const auto wanted = reference(c.tables(), c.bags, c.out, t, b);
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const double got =
            double{test::output_at(c, b, c.table[static_cast<std::size_t>(t)].column + static_cast<std::int64_t>(i))};
        if (!(std::abs(got - wanted[i].value) <= wanted[i].bound)) ++count;
      }
    }
  return count;
}

// Whether all that is no column of a table is as it was.
bool leaves_the_rest(const RandomBags& c) {
  RandomBags clean = c;
  clean.clear_output();
  const std::size_t element = imbrex::size_of(c.out), row = static_cast<std::size_t>(c.pitch) * element;
  for (std::size_t d = 0; d < c.part.size(); ++d)
    for (std::size_t at = 0; at < c.part[d].size(); ++at) {
      const auto column = static_cast<std::int64_t>(at % row / element);
      bool written = false;
      for (const Table& t : c.table) written |= column >= t.column && column < t.column + t.dim;
      if (!written && c.part[d][at] != clean.part[d][at]) return false;
    }
  return true;
}

template <typename Call>
std::string refusal(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code() == ErrorCode::invalid_input ? error.what() : "another error";
  }
  return "no error";
}

TEST(LookUp, RandomProblemsAreWithinTheirBounds) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::uint64_t i = 0; i < 500; ++i) {
    std::mt19937_64 random(seed + i);
    RandomBags c = test::random_bags(random, {.rows = 200, .part_rows = 5, .bag = 24, .misfits = i % 3 == 0});
    SCOPED_TRACE(fmt::format("case {}: {}", i, c.text()));
    ASSERT_NO_THROW(check_shapes(c.tables(), c.bags));
    ASSERT_NO_THROW(check_shapes(c.tables(), c.output(), c.bags.batch));
    ASSERT_EQ(check_bags(c.tables(), c.bags, Misfits::ignored), c.misfits);
    // In parts, as plans cut it.
    std::int64_t ignored = 0;
    const std::int64_t row = c.bags.batch / 3;
    const std::int32_t tables = c.tables().count, table = tables / 2;
    for (const Part& part :
         {Part{0, row, 0, tables}, Part{row, c.bags.batch, 0, table}, Part{row, c.bags.batch, table, tables}})
      ignored += look_up(c.tables(), c.bags, c.output(), part);
    ASSERT_EQ(ignored, c.misfits);
    ASSERT_EQ(faults(c), 0);
    ASSERT_TRUE(leaves_the_rest(c));
  }
}

TEST(LookUp, GivesExactSums) {
  // Table 0: row r holds r + 1 in all columns, in fp16; table 1: 2^r.
  const std::vector<float> values[2] = {{1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}, {1, 1, 1, 1, 2, 2, 2, 2, 4, 4, 4, 4}};
  auto first = base::elements_of(Type::fp16, values[0]), second = base::elements_of(Type::fp16, values[1]);
  const Table table[2] = {{first.data(), 3, 8, 0, 4, 0}, {second.data(), 3, 8, 0, 4, 4}};
  const Tables tables{table, 2, TableRows::fp16};
  const std::int32_t indices[] = {0, 1, 2, 2, 0, 0, 1};
  const std::int32_t offsets[] = {0, 3, 3, 5, 7};  // bags {0, 1, 2}, {}, {2, 0}, {0, 1}
  const float weights[] = {1, 2, 3, 4, 5, 6, 7};
  std::vector<float> out[2] = {std::vector<float>(8), std::vector<float>(8)};
  void* parts[2] = {out[0].data(), out[1].data()};
  Bags bags{indices, offsets, nullptr, 7, 2, IndexType::int32, Pooling::sum};
  const Output output{parts, 2, Type::fp32, 8};
  EXPECT_EQ(look_up(tables, bags, output, whole(tables, bags)), 0);
  EXPECT_EQ(out[0], (std::vector<float>{6, 6, 6, 6, 5, 5, 5, 5}));
  EXPECT_EQ(out[1], (std::vector<float>{0, 0, 0, 0, 3, 3, 3, 3}));
  bags.weights = weights;
  bags.pooling = Pooling::mean;
  look_up(tables, bags, output, whole(tables, bags));
  EXPECT_EQ(out[0], (std::vector<float>{14 * (1.0f / 3), 14 * (1.0f / 3), 14 * (1.0f / 3), 14 * (1.0f / 3), 10.5, 10.5,
                                        10.5, 10.5}));
  EXPECT_EQ(out[1], (std::vector<float>{0, 0, 0, 0, 10, 10, 10, 10}));
}

TEST(LookUp, DecodesRowsOfInt8) {
  std::vector<std::byte> row(12);
  for (int i = 0; i < 4; ++i) row[static_cast<std::size_t>(i)] = static_cast<std::byte>(i == 3 ? 255 : i);
  const float scale_and_bias[] = {0.5f, -1.0f};
  std::memcpy(row.data() + 4, scale_and_bias, 8);
  const Table table{row.data(), 1, 12, 4, 4, 0};
  const std::int64_t indices[] = {0, 0}, offsets[] = {0, 2};
  std::vector<float> out(4);
  void* part = out.data();
  const Tables tables{&table, 1, TableRows::int8};
  const Bags bags{indices, offsets, nullptr, 2, 1, IndexType::int64, Pooling::sum};
  look_up(tables, bags, {&part, 1, Type::fp32, 4}, whole(tables, bags));
  EXPECT_EQ(out, (std::vector<float>{-2, -1, 0, 253}));
}

TEST(LookUp, AWrongSumIsOutsideItsBound) {
  std::mt19937_64 random(7);
  int tried = 0;
  for (int i = 0; i < 40; ++i) {
    RandomBags c = test::random_bags(random);
    look_up(c.tables(), c.bags, c.output(), whole(c.tables(), c.bags));
    if (c.bags.count == 0 || c.bags.pooling == Pooling::mean) continue;
    ++tried;
    // One row more.
    std::int64_t bag = 0;
    while (index_at(c.bags.offsets, c.bags.type, bag + 1) == 0) ++bag;
    const std::int64_t index = index_at(c.bags.indices, c.bags.type, 0);
    c.bags.weights = nullptr;
    test::put_number(c.indices, c.bags.type, 0,
                     (index + 1) % c.table[static_cast<std::size_t>(bag / c.bags.batch)].count);
    if (c.table[static_cast<std::size_t>(bag / c.bags.batch)].count > 1) {
      EXPECT_GT(faults(c), 0) << c.text();
    }
  }
  EXPECT_GT(tried, 5);
}

TEST(Bags, HostileNumbersAreNamed) {
  std::vector<float> rows(40);
  const Table table[2] = {{rows.data(), 10, 16, 0, 4, 0}, {rows.data(), 5, 16, 0, 4, 4}};
  const Tables tables{table, 2, TableRows::fp32};
  const auto refused = [&](std::vector<std::int64_t> indices, std::vector<std::int64_t> offsets,
                           Misfits misfits = Misfits::refused) {
    const Bags bags{indices.data(), offsets.data(), nullptr, std::ssize(indices), 2, IndexType::int64, Pooling::sum};
    return refusal([&] { check_bags(tables, bags, misfits); });
  };
  EXPECT_EQ(refused({9, 4, 4}, {0, 1, 1, 2, 3}), "no error");
  EXPECT_EQ(refused({9, 4, 5}, {0, 1, 1, 2, 3}), "table 1, bag 1, position 2: index 5: the table has rows from 0 to 4");
  EXPECT_EQ(refused({-1, 4, 4}, {0, 1, 1, 2, 3}),
            "table 0, bag 0, position 0: index -1: the table has rows from 0 to 9");
  EXPECT_EQ(refused({9, 4, std::int64_t{1} << 32}, {0, 1, 1, 2, 3}),
            "table 1, bag 1, position 2: index 4294967296: the table has rows from 0 to 4");
  EXPECT_EQ(refused({9, 4, std::int64_t{1} << 32}, {0, 1, 1, 2, 3}, Misfits::ignored), "no error");
  for (const Misfits misfits : {Misfits::refused, Misfits::ignored}) {
    EXPECT_EQ(refused({9, 4, 4}, {0, 1, 0, 2, 3}, misfits),
              "table 1, bag 0, place 2 of the offsets: 0: it must be from 1 to 3, as offsets do not decrease and there "
              "are 3 indices");
    EXPECT_EQ(refused({9, 4, 4}, {0, 1, 1, 2, 4}, misfits),
              "table 1, bag 1, place 4 of the offsets: 4: it must be from 2 to 3, as offsets do not decrease and there "
              "are 3 indices");
    EXPECT_EQ(refused({9, 4, 4}, {-1, 1, 1, 2, 3}, misfits),
              "table 0, bag 0, place 0 of the offsets: -1: it must be from 0 to 3, as offsets do not decrease and "
              "there are 3 indices");
    EXPECT_EQ(refused({9, 4, 4}, {0, 1, std::int64_t{1} << 31, 2, 3}, misfits),
              "table 1, bag 0, place 2 of the offsets: 2147483648: it must be from 1 to 3, as offsets do not decrease "
              "and there are 3 indices");
  }
}

TEST(Bags, ShapesOutOfRangeAreNamed) {
  std::vector<float> rows(2048);
  const std::int32_t offsets[] = {0, 0};
  Table table{rows.data(), 1, 16, 0, 4, 0};
  Bags bags{nullptr, offsets, nullptr, 0, 1, IndexType::int32, Pooling::sum};
  Tables tables{&table, 1, TableRows::fp32};
  const auto shapes = [&] { return refusal([&] { check_shapes(tables, bags); }); };
  EXPECT_EQ(shapes(), "no error");
  table.dim = 6;
  EXPECT_EQ(shapes(), "table 0: dim = 6: it must be a multiple of 4 from 4 to 1024");
  table.dim = 1028, table.pitch = 8192;
  EXPECT_EQ(shapes(), "table 0: dim = 1028: it must be a multiple of 4 from 4 to 1024");
  table = {rows.data(), 1, 12, 0, 4, 0};
  EXPECT_EQ(shapes(), "table 0: rows 12 bytes apart: a multiple of 16 from 16 on");
  table = {rows.data() + 1, 1, 16, 0, 4, 0};
  EXPECT_EQ(shapes(), "table 0: its address must be aligned to 16 bytes");
  table = {rows.data(), std::int64_t{1} << 31, 16, 0, 4, 0};
  EXPECT_EQ(shapes(), "table 0: 2147483648 rows: from 0 to 2147483647");
  table = {rows.data(), 1, 16, 2, 4, 0}, tables.type = TableRows::int8;
  EXPECT_EQ(shapes(), "table 0: the scale 2 bytes after its row's first column: a multiple of 4 from 4 on");
  table = {rows.data(), 1, 16, 0, 4, 2}, tables.type = TableRows::fp32;
  EXPECT_EQ(shapes(), "table 0: column = 2: it must be a multiple of 4");
  table.column = 0, bags.count = std::int64_t{1} << 31, bags.indices = offsets;
  EXPECT_EQ(shapes(), "2147483648 indices: from 0 to 2147483647");
  bags.count = 0, bags.batch = 0;
  EXPECT_EQ(shapes(), "batch = 0: with 1 tables from 1 to 2147483647");
  tables.count = 0;
  EXPECT_EQ(shapes(), "0 tables: there must be one at least");
  tables.count = 1;
  void* part = rows.data();
  const auto output = [&](const Output& o, std::int64_t batch) {
    return refusal([&] { check_shapes(tables, o, batch); });
  };
  EXPECT_EQ(output({&part, 1, Type::fp32, 4}, 3), "no error");
  EXPECT_EQ(output({&part, 2, Type::fp32, 4}, 3), "ranks = 2: they must divide the batch of 3");
  EXPECT_EQ(output({&part, 1, Type::e4m3, 4}, 3), "output of e4m3: it must be fp32, fp16 or bf16");
  EXPECT_EQ(output({&part, 1, Type::fp32, 0}, 3), "output: 0 elements from row to row: a multiple of 4 from 4 on");
  part = rows.data() + 1;
  EXPECT_EQ(output({&part, 1, Type::fp32, 4}, 3), "output: the address of rank 0's part must be aligned to 16 bytes");
}

}  // namespace
}  // namespace imbrex::embedding
