// Records of products: which of cuBLASLt's suggestions is faster than its first.
#include <gtest/gtest.h>

#include "choose/choose_gpu.hpp"
#include "imbrex/error.hpp"
#include "program/measure/measure.hpp"
#include "records/records.hpp"

namespace imbrex {
namespace {

constexpr Type bf16 = Type::bf16;

program::ProductMeasurement measured(std::int64_t m, std::vector<program::ProductMeasurement::Way> ways) {
  return {"Some GPU", m, 4096, 3584, bf16, std::move(ways)};
}

records::Records parsed(const std::string& text) { return records::parse_records(text, "mine.json"); }

std::string message_about(const std::string& text) {
  try {
    parsed(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "nothing was refused";
}

TEST(Products, AreWhatARankMultiplies) {
  const auto product = [](Operator op) { return plan::product_of_rank({op, 128, 512, 1024, 4, bf16}); };
  EXPECT_EQ(product(Operator::all_gather_gemm), (plan::ProductSize{128, 128, 1024, bf16}));
  EXPECT_EQ(product(Operator::gemm_reduce_scatter), (plan::ProductSize{128, 512, 256, bf16}));
  EXPECT_EQ(product(Operator::gemm_all_reduce), (plan::ProductSize{128, 512, 256, bf16}));
  // A scale of each rank's rows makes a product of them.
  const Problem scaled{Operator::all_gather_gemm, 128, 512, 1024, 4, Type::e4m3, false, Scales::tensor};
  EXPECT_EQ(plan::product_of_rank(scaled), (plan::ProductSize{32, 128, 1024, Type::e4m3}));
  const RankShapes shapes = shapes_of({Operator::gemm_all_to_all, 128, 512, 1024, 4, bf16});
  EXPECT_EQ(product(Operator::gemm_all_to_all), (plan::ProductSize{shapes.a.rows, shapes.b.cols, shapes.a.cols, bf16}));
}

TEST(ProductRecords, StandForRowsInAsManyStrips) {
  for (const auto& [m, least] : {std::pair{1, 1}, {16, 9}, {64, 33}, {65, 65}, {128, 65}, {200, 193}, {1024, 961}})
    EXPECT_EQ(records::least_rows_alike(m), least) << m;
}

TEST(ProductRecords, ComeOfWhatIsFasterThanTheFirst) {
  const std::vector measurements{
      measured(16, {{0, 1, 9e-6}, {7, 2, 8e-6}, {8, 1, 8.5e-6}}),
      measured(60, {{0, 1, 9e-6}, {7, 1, 8.95e-6}}),  // by less than 1 %
      measured(64, {{0, 1, 9e-6}, {9, 1, 6e-6}}),
      measured(128, {{0, 1, 9e-6}, {0, 1, 9.5e-6}}),
  };
  const records::Records records = parsed(program::tuning_table(measurements, "2026-12-24"));
  const std::vector<records::ProductRecord> expected{{{16, 4096, 3584, bf16}, 9, 16, 7, 2, 8e-6, 9e-6},
                                                     {{64, 4096, 3584, bf16}, 61, 64, 9, 1, 6e-6, 9e-6}};
  ASSERT_EQ(records.products.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(to_json(records.products[i]), to_json(expected[i]));
}

TEST(ProductRecords, TakeThePlaceOfThoseOfTheirProducts) {
  records::Records before{"Some GPU", "2026-01-01", {}};
  before.list.push_back({{Operator::gemm_all_reduce, 16, 32, 64, 4, bf16}, 8, 32, {}, 2e-6, 3e-6});
  before.all_reduces = {{4, bf16, "2026-11-22", 4096, {}}};
  before.products = {{{16, 4096, 3584, bf16}, 9, 16, 5, 1, 1e-6, 2e-6},
                     {{16, 4096, 3584, Type::fp16}, 9, 16, 5, 1, 1e-6, 2e-6}};
  const std::vector slower{measured(16, {{0, 1, 9e-6}, {7, 1, 9e-6}})};
  const records::Records after = parsed(program::tuning_table(slower, "2026-12-24", to_json(before)));
  ASSERT_EQ(after.products.size(), 1u);
  EXPECT_EQ(after.products[0].product.type, Type::fp16);
  EXPECT_EQ(after.date, "2026-12-24");
  EXPECT_EQ(after.list.size(), 1u);
  EXPECT_EQ(after.all_reduces, before.all_reduces);
  // Tuning something else keeps products.
  program::Measurement gemm;
  gemm.problem = {Operator::gemm_all_reduce, 128, 32, 64, 4, bf16};
  gemm.gpu = "Some GPU";
  gemm.plans.emplace_back().seconds = 4e-6;
  EXPECT_EQ(parsed(program::tuning_table(std::vector{gemm}, "2026-12-24", to_json(before))).products.size(), 2u);
  records::Records other = before;
  other.gpu = "Another GPU";
  EXPECT_THROW(program::tuning_table(slower, "2026-12-24", to_json(other)), Error);
}

TEST(ProductRecords, OfMoreRowsTellNothingOfThoseMeasuredSince) {
  records::Records before{"Some GPU", "2026-01-01", {}};
  before.products = {{{128, 4096, 3584, bf16}, 65, 128, 7, 1, 9e-6, 14e-6}};
  const std::vector fewer{measured(100, {{0, 1, 9e-6}, {7, 1, 14e-6}})};
  const records::Records after = parsed(program::tuning_table(fewer, "2026-12-24", to_json(before)));
  EXPECT_EQ(records::find_product(after.products, {100, 4096, 3584, bf16}), nullptr);
  ASSERT_NE(records::find_product(after.products, {101, 4096, 3584, bf16}), nullptr);
}

TEST(ProductRecords, RefuseWhatTheyDoNotKnow) {
  records::Records records{"Some GPU", "2026-01-01", {}};
  records.products = {{{16, 4096, 3584, bf16, Layout::column_major}, 9, 16, 5, 2, 1e-6, 2e-6}};
  EXPECT_EQ(parsed(to_json(records)).products, records.products);
  records.products[0].product.b_layout = Layout::row_major;
  const std::string text = to_json(records);
  EXPECT_EQ(to_json(parsed(text)), text);
  EXPECT_EQ(text.find("b_layout"), std::string::npos);  // as in files of before
  const struct {
    const char *from, *to, *says;
  } cases[] = {{"\"m\": 16", "\"m\": 0", "mine.json: products[0].m: 0: it must be positive"},
               {"\"from_m\": 9", "\"from_m\": 17", "products[0]: from_m and to_m must be a range"},
               {"\"tile\": 5", "\"tile\": 0", "products[0].tile: 0: it must be positive"},
               {"\"parts\": 2", "\"parts\": 1.5", "products[0].parts: 1.5 is not an integer"},
               {"\"us\": 1.0", "\"us\": -1", "products[0].us: a time must be from"},
               {"\"bf16\"", "\"bf17\"", "products[0].type: "},
               {"\"tile\"", "\"tiles\"", "'tiles' is not known"}};
  for (const auto& c : cases) {
    std::string changed = text;
    const std::size_t at = changed.find(c.from);
    ASSERT_NE(at, std::string::npos) << c.from;
    changed.replace(at, std::string(c.from).size(), c.to);
    EXPECT_NE(message_about(changed).find(c.says), std::string::npos) << message_about(changed);
  }
}

TEST(ProductRecords, AnswerForTheirRowsColumnsAndK) {
  const std::vector<records::ProductRecord> records{{{128, 64, 32, bf16}, 65, 128, 5, 1, 1e-6, 2e-6},
                                                    {{100, 64, 32, bf16}, 90, 100, 6, 2, 1e-6, 2e-6}};
  const auto tile = [&](const plan::ProductSize& p) {
    const records::ProductRecord* found = records::find_product(records, p);
    return found == nullptr ? 0 : found->tile;
  };
  EXPECT_EQ(tile({128, 64, 32, bf16}), 5);
  EXPECT_EQ(tile({65, 64, 32, bf16}), 5);
  EXPECT_EQ(tile({95, 64, 32, bf16}), 6);  // the nearer one
  EXPECT_EQ(tile({64, 64, 32, bf16}), 0);
  EXPECT_EQ(tile({129, 64, 32, bf16}), 0);
  EXPECT_EQ(tile({128, 65, 32, bf16}), 0);
  EXPECT_EQ(tile({128, 64, 33, bf16}), 0);
  EXPECT_EQ(tile({128, 64, 32, Type::fp16}), 0);

  // Where a layout of B has no record of its own, that of the other serves.
  constexpr Layout by_columns = Layout::column_major;
  std::vector<records::ProductRecord> both = records;
  EXPECT_EQ(records::find_product(both, {95, 64, 32, bf16, by_columns})->tile, 6);
  both.push_back({{128, 64, 32, bf16, by_columns}, 65, 128, 7, 1, 1e-6, 2e-6});
  EXPECT_EQ(records::find_product(both, {95, 64, 32, bf16, by_columns})->tile, 7);
  EXPECT_EQ(records::find_product(both, {95, 64, 32, bf16})->tile, 6);

  const Problem problem{Operator::gemm_all_reduce, 95, 64, 128, 4, bf16};
  Knobs knobs = records::with_library_tile({}, records, problem);
  EXPECT_EQ(knobs.library_tile, 6);
  EXPECT_EQ(knobs.library_parts, 2);
  knobs.library_tile = 3;
  EXPECT_EQ(records::with_library_tile(knobs, records, problem), knobs);  // somebody has asked for it
}

TEST(ProductRecords, ThatShipAreTakenByTheSequence) {
  const choose::GpuKind h200{"NVIDIA H200", 9};
  const records::Records& records = records::records_of(h200.name);
  ASSERT_FALSE(records.products.empty());
  for (const records::ProductRecord& r : records.products) {
    EXPECT_LT(r.seconds * 1.01, r.first_seconds);
    const Problem problem{Operator::gemm_all_reduce, r.product.m, r.product.n, 2 * r.product.k, 2, r.product.type};
    const plan::Candidate named = choose::choose_gpu_candidate(problem, Strategy::sequential, {}, h200);
    EXPECT_EQ(named.knobs.library_tile, r.tile);
    EXPECT_EQ(named.knobs.library_parts, r.parts);
    const plan::Candidate chosen = choose::choose_gpu_candidate(problem, {}, {}, h200);
    EXPECT_EQ(chosen.knobs.library_tile, chosen.strategy == Strategy::sequential ? r.tile : 0);
    EXPECT_EQ(choose::choose_gpu_candidate(problem, Strategy::sequential, Knobs{}, h200).knobs, Knobs{});
    EXPECT_EQ(choose::choose_gpu_candidate(problem, Strategy::sequential, {}, {"Some GPU", 9}).knobs.library_tile, 0);
  }
}

}  // namespace
}  // namespace imbrex
