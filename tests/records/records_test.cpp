// Records of plans: their ranges, their JSON, those that ship.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <set>
#include <utility>

#include "execute/cuda/refusal.hpp"
#include "imbrex/error.hpp"
#include "program/measure/measure.hpp"
#include "records/records.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

records::Record record(std::int64_t m, std::int64_t n, int group) {
  records::Record r{{Operator::gemm_all_reduce, m, n, 64, 4, Type::bf16}, 0, 0, {Strategy::fused, {}}, 2e-6, 3e-6};
  r.candidate.knobs.group = group;
  return r;
}

TEST(Records, CoverEveryRowBetweenThoseMeasured) {
  records::Records records{
      "Some GPU", "2026-11-21", {record(256, 32, 3), record(16, 32, 1), record(64, 32, 2), record(64, 40, 9)}};
  records::set_ranges(records);
  std::vector<std::pair<std::int64_t, std::int64_t>> ranges;
  for (const records::Record& r : records.list) ranges.emplace_back(r.m_low, r.m_high);
  EXPECT_EQ(ranges, (std::vector<std::pair<std::int64_t, std::int64_t>>{{8, 32}, {33, 128}, {129, 512}, {32, 128}}));
}

TEST(Records, OfAProblemMeasuredOftenAreOneTheFastest) {
  std::vector<program::Measurement> measurements;
  for (const double seconds : {3e-6, 1e-6, 2e-6}) {
    program::Measurement m;
    m.problem = record(64, 32, 0).problem;
    m.gpu = "Some GPU";
    m.plans = {{Strategy::fused, {}, true, {}, seconds}};
    measurements.push_back(m);
  }
  const records::Records table = records::parse_records(program::tuning_table(measurements, "2026-11-21"), "test");
  ASSERT_EQ(table.list.size(), 1u);
  EXPECT_EQ(std::pair(table.list[0].m_low, table.list[0].m_high), std::pair(std::int64_t{32}, std::int64_t{128}));
  EXPECT_EQ(table.list[0].seconds, 1e-6);
}

records::Record with_scales(records::Record r, Scales scales, int group) {
  r.problem.type = Type::e4m3;
  r.problem.scales = scales;
  r.candidate.knobs.group = group;
  return r;
}

TEST(Records, TellKindsOfScalesApart) {
  const records::Record any = record(64, 4096, 0);
  records::Records records{"Some GPU",
                           "2026-11-21",
                           {with_scales(any, Scales::row, 3), with_scales(any, Scales::tensor, 2),
                            with_scales(record(256, 4096, 0), Scales::row, 4), with_scales(any, Scales::none, 1)}};
  records::set_ranges(records);
  using Range = std::pair<std::int64_t, std::int64_t>;
  for (const records::Record& r : records.list)
    EXPECT_EQ(Range(r.m_low, r.m_high), r.problem.scales != Scales::row ? Range(32, 128)
                                        : r.problem.m == 64             ? Range(32, 128)
                                                                        : Range(129, 512));

  const std::string text = to_json(records);
  const records::Records back = records::parse_records(text, "test");
  EXPECT_EQ(to_json(back), text);
  for (std::size_t i = 0; i < records.list.size(); ++i)
    EXPECT_EQ(back.list[i].problem, records.list[i].problem) << text;
  // A record without scales says nothing of them, as those did that were written before there were any.
  EXPECT_EQ(to_json(records::Records{"Some GPU", "2026-11-21", {any}}).find("scales"), std::string::npos);
}

TEST(Records, TellLayoutsOfBApart) {
  records::Record by_rows = record(64, 4096, 1), by_columns = by_rows, more_rows = record(256, 4096, 1);
  by_columns.problem.b_layout = Layout::column_major;
  by_columns.candidate.knobs.group = 3;
  records::Records records{"Some GPU", "2026-11-21", {by_columns, more_rows, by_rows}};
  records::set_ranges(records);
  ASSERT_EQ(records.list.size(), 3u);
  // By columns there is one record only, whose range no other cuts short.
  EXPECT_EQ(records.list[2].problem, by_columns.problem);
  EXPECT_EQ(std::pair(records.list[2].m_low, records.list[2].m_high), std::pair(std::int64_t{32}, std::int64_t{128}));
  const std::string text = to_json(records);
  const records::Records back = records::parse_records(text, "test");
  EXPECT_EQ(to_json(back), text);
  for (std::size_t i = 0; i < records.list.size(); ++i) EXPECT_EQ(back.list[i].problem, records.list[i].problem);
  // By rows, a record says nothing of it, as those of before.
  EXPECT_EQ(to_json(records::Records{"Some GPU", "2026-11-21", {by_rows}}).find("b_layout"), std::string::npos);
}

TEST(Records, SurviveJson) {
  records::Records records{"a \"quoted\" GPU", "2026-11-21", {record(16, 32, 1), record(64, 32, 2)}};
  records.list[1].candidate.knobs.split_k = 3;
  records::set_ranges(records);
  const std::string text = to_json(records);
  const records::Records back = records::parse_records(text, "test");
  EXPECT_EQ(to_json(back), text);
  EXPECT_EQ(back.gpu, records.gpu);
  ASSERT_EQ(back.list.size(), 2u);
  EXPECT_EQ(back.list[1].candidate.knobs, records.list[1].candidate.knobs);
  EXPECT_EQ(back.list[1].problem, records.list[1].problem);
}

TEST(Records, RefuseWhatTheyDoNotKnow) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      records::parse_records(text, "mine.json");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return error.what();
    }
    return "accepted";
  };
  records::Records records{"GPU", "2026-11-21", {record(16, 32, 1)}};
  records::set_ranges(records);
  const std::string text = to_json(records);
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return changed;
  };
  EXPECT_NE(message("{").find("mine.json: this is not JSON"), std::string::npos);
  EXPECT_NE(message(with("\"imbrex_records\": 1", "\"imbrex_records\": 2")).find("reads format 1"), std::string::npos);
  EXPECT_NE(message(with("\"from_m\": 8", "\"from_m\": 0")).find("records[0]"), std::string::npos);
  EXPECT_NE(message(with("\"ranks\": 4", "\"ranks\": \"4\"")).find("records[0].ranks: '4' is not an integer"),
            std::string::npos);
  EXPECT_NE(message(with("\"type\": \"bf16\"", "\"type\": \"bf16\", \"scales\": \"row\""))
                .find("records[0].scales: bf16 goes without scales"),
            std::string::npos);
  EXPECT_NE(message(with("\"type\": \"bf16\"", "\"type\": \"e4m3\", \"scales\": \"rows\"")).find("'rows'"),
            std::string::npos);
  EXPECT_NE(message(with("\"group\"", "\"grupp\"")).find("'grupp' is not known"), std::string::npos);
  // Values of which analytical models and plans could make nothing.
  EXPECT_NE(message(with("\"us\": 2.0", "\"us\": 0")).find("records[0].us: a time must be from"), std::string::npos);
  EXPECT_NE(message(with("\"sequential_us\": 3.0", "\"sequential_us\": 1e300")).find("records[0].sequential_us"),
            std::string::npos);
  EXPECT_NE(message(with("\"n\": 32", "\"n\": 0")).find("records[0]: "), std::string::npos);
  EXPECT_NE(message(with("\"k\": 64", "\"k\": 65")).find("K = 65 does not divide by 4 ranks"), std::string::npos);
  EXPECT_NE(message(with("\"tile_m\": 128", "\"tile_m\": 0")).find("knob tile_m = 0"), std::string::npos);
  EXPECT_NE(message(with("\"chunks\": 2", "\"chunks\": 0")).find("knob chunks = 0"), std::string::npos);
}

TEST(Records, ThatShipAreReadAndMakeSoundPlans) {
  const records::Records records = records::load_records("NVIDIA H200");
  EXPECT_GT(records.list.size(), 100u);
  for (const records::Record& r : records.list) {
    // A smaller product in the same knobs: the checker's time, not its answer, depends on N and K.
    Problem p = r.problem;
    p.m = std::min<std::int64_t>(p.m, 1024);
    p.n = p.k = 64 * p.ranks;
    const Plan plan = make_plan(p, r.candidate.strategy, r.candidate.knobs);
    EXPECT_FALSE(check(plan).has_value()) << name_of(p.op) << " M " << r.problem.m;
    EXPECT_EQ(cuda::refusal_of_plan(plan), "") << name_of(p.op) << " M " << r.problem.m;
  }
  EXPECT_TRUE(records::load_records("no such GPU").list.empty());

  // Completing a table gives all ranges anew: those that ship are what comes out again.
  records::Records again = records;
  records::set_ranges(again);
  for (const records::Record& r : records.list) {
    const auto same = [&](const records::Record& x) { return x.problem == r.problem; };
    const auto found = std::find_if(again.list.begin(), again.list.end(), same);
    ASSERT_NE(found, again.list.end());
    EXPECT_EQ(std::pair(found->m_low, found->m_high), std::pair(r.m_low, r.m_high))
        << name_of(r.problem.op) << " " << r.problem.m << " x " << r.problem.n << " x " << r.problem.k;
  }
}

}  // namespace
}  // namespace imbrex
