// Leading dimensions of a problem: the rules for them, how they travel, and what plans do where rows have gaps.
#include <gtest/gtest.h>

#include <limits>

#include "imbrex/error.hpp"
#include "plan/expect_fault.hpp"
#include "plan/fields.hpp"
#include "plan/operand_buffers.hpp"
#include "plan/problem.hpp"
#include "plan/refusal_of.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

constexpr Strategy strategies[] = {Strategy::sequential, Strategy::decomposed, Strategy::fused, Strategy::signaled};

// A is 32 x 32, B 32 x 24, 8 and 16, and the outputs 64 x 24, 8 and 16.
Problem pitched_outputs() {
  Problem problem{Operator::all_gather_gemm, 64, 48, 32, 2, Type::bf16, true};
  problem.more_n = {16, 32};
  return problem;
}

TEST(Pitches, AreRefusedByNameValueAndRule) {
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  struct Case {
    const char *name, *operand;
    std::int64_t& (*of)(Problem&);
    std::int64_t length;
  };
  const Case cases[] = {
      {"lda", "a", [](Problem& p) -> std::int64_t& { return p.lda; }, 32},
      {"ldb", "b", [](Problem& p) -> std::int64_t& { return p.ldb; }, 24},
      {"ldo", "out", [](Problem& p) -> std::int64_t& { return p.ldo; }, 24},
      {"more_ldb", "b2", [](Problem& p) -> std::int64_t& { return p.more_ldb[1]; }, 16},
      {"more_ldo", "out1", [](Problem& p) -> std::int64_t& { return p.more_ldo[0]; }, 8},
  };
  for (const Case& c : cases)
    for (const std::int64_t value : {std::int64_t{0}, c.length, c.length + 1, most, c.length - 1, std::int64_t{-1},
                                     most + 1, std::numeric_limits<std::int64_t>::min()}) {
      Problem problem = pitched_outputs();
      c.of(problem) = value;
      const bool fits = value == 0 || (value >= c.length && value <= most);
      EXPECT_EQ(test::refusal_of(problem), fits ? ""
                                                : std::string(c.name) + " = " + std::to_string(value) +
                                                      ": it must be 0, or from " + std::to_string(c.length) +
                                                      ", the elements of a row of " + c.operand + ", to 2147483647");
    }
  // Where B lies by columns, a row is one of N x K.
  Problem problem = pitched_outputs();
  problem.b_layout = Layout::column_major;
  problem.ldb = 31;
  EXPECT_NE(test::refusal_of(problem).find("ldb = 31: it must be 0, or from 32"), std::string::npos)
      << test::refusal_of(problem);
  problem.ldb = 32;
  EXPECT_EQ(test::refusal_of(problem), "");
  // Without a third B nothing is said of one.
  problem.more_n[1] = 0;
  problem.more_ldb[1] = 64;
  EXPECT_NE(test::refusal_of(problem).find("more_ldb holds 64 where more_n holds 0"), std::string::npos);
  problem.more_ldb[1] = 0, problem.more_ldo[1] = 64;
  EXPECT_NE(test::refusal_of(problem).find("more_ldo holds 64 where more_n holds 0"), std::string::npos);
}

TEST(Pitches, OperandsAndBuffersHaveThem) {
  Problem problem = pitched_outputs();
  problem.lda = 40, problem.ldb = 24, problem.ldo = 25;
  problem.more_ldb = {9, 0}, problem.more_ldo = {0, 20};
  problem.gathered_a = true;
  const std::vector<std::pair<std::string, std::int64_t>> wanted{{"a", 40}, {"b", 24},    {"out", 25},
                                                                 {"b1", 9}, {"out2", 20}, {"gathered", 0}};
  const std::vector<OperandInfo> infos = operands_of(problem);
  const std::vector<Buffer> buffers = plan::operand_buffers(problem);
  for (const auto& [name, pitch] : wanted) {
    const auto info = std::find_if(infos.begin(), infos.end(), [&](const OperandInfo& i) { return i.name == name; });
    EXPECT_EQ(info->pitch, pitch) << name;
    EXPECT_EQ(info->at(&problem).strides[0], pitch == 0 ? info->cols : pitch) << name;
    EXPECT_EQ(info->bytes(),
              static_cast<std::size_t>((info->rows - 1) * (pitch == 0 ? info->cols : pitch) + info->cols) *
                  size_of(info->type));
    for (std::size_t i = 0; i < buffers.size(); ++i)
      if (buffers[i].name == name) {
        // As long as a row is none.
        EXPECT_EQ(plan::pitch_of(problem, buffers[i], static_cast<int>(i)), pitch == info->cols ? 0 : pitch) << name;
      }
  }
  EXPECT_TRUE(plan::without_gaps(problem) == [&] {
    Problem p = pitched_outputs();
    p.gathered_a = true;
    return p;
  }());
  // Every rank's agreement names them.
  plan::Fields fields;
  plan::add_fields(fields, problem);
  for (const auto& [name, text] :
       {std::pair("lda", "40"), {"ldb", "24"}, {"ldo", "25"}, {"more_ldb", "9, 0"}, {"more_ldo", "0, 20"}})
    EXPECT_TRUE(std::find(fields.begin(), fields.end(), std::pair<std::string, std::string>(name, text)) !=
                fields.end())
        << name;
}

TEST(Pitches, TravelAsJson) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 40; ++i) {
    test::RandomCase c = test::random_case(random, {.max_ranks = 4, .max_size = 64, .bias = true, .lists = true});
    const std::string before = to_json(make_plan(c.problem, c.strategy, c.knobs));
    for (const char* key : {"\"lda\"", "\"ldb\"", "\"ldo\"", "more_ldb", "more_ldo"})
      EXPECT_EQ(before.find(key), std::string::npos);  // files of before have none of this
    test::add_pitches(random, c.problem);
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    EXPECT_TRUE(parse_plan(to_json(plan)) == plan) << test::describe(c);
  }
  Problem problem = pitched_outputs();
  problem.lda = 40, problem.ldo = 25, problem.more_ldb = {0, 20};
  const std::string json = to_json(make_plan(problem, Strategy::fused, {}));
  EXPECT_NE(json.find(R"("more_n": [16, 32], "lda": 40, "ldo": 25, "more_ldb": [0, 20]})"), std::string::npos) << json;
  for (const char* value : {"40.5", "\"40\"", "99999999999999999999"}) {
    std::string spoilt = json;
    spoilt.replace(spoilt.find("\"lda\": 40") + 7, 2, value);
    try {
      parse_plan(spoilt);
      ADD_FAILURE() << value << " was read";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("problem.lda"), std::string::npos) << error.what();
    }
  }
}

TEST(Pitches, OperandsAreNoLargerThanPlansMayHave) {
  Problem problem{Operator::gemm_all_reduce, std::int64_t{1} << 20, 8, 8, 1, Type::bf16};
  Plan plan = make_plan(problem, Strategy::sequential, {});
  plan.problem.lda = std::int64_t{1} << 24;
  EXPECT_FALSE(check_format(plan).has_value());
  ++plan.problem.lda;
  test::expect_fault(plan, Fault::malformed,
                     "lda = 16777217: 1048576 rows of a so far apart are larger than 2^46 bytes");
}

// Only addresses change, except collectives, which read and write workspaces in place of what has gaps.
TEST(Pitches, LeaveFusedPlansAsTheyAre) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 100; ++i) {
    test::RandomCase c = test::random_case(random, {.max_ranks = 8, .max_size = 100, .bias = true, .lists = true});
    const Plan plain = make_plan(c.problem, c.strategy, c.knobs);
    test::add_pitches(random, c.problem);
    Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    SCOPED_TRACE(test::describe(c));
    const auto finding = check(plan);
    ASSERT_FALSE(finding.has_value()) << finding->message;
    const bool collectives = c.strategy != Strategy::fused && c.problem.ranks > 1;
    plan.problem = plain.problem;
    EXPECT_GE(count_tasks(plan), count_tasks(plain));
    EXPECT_TRUE(collectives || plan == plain);
  }
}

TEST(Pitches, CollectivesOnGapsAreRefusedByName) {
  const auto expect = [](const Problem& problem, Problem with, const char* text) {
    for (const Strategy strategy : strategies) {
      if (strategy == Strategy::fused) continue;
      Plan plan = make_plan(problem, strategy, {});
      ASSERT_FALSE(check(plan).has_value());
      plan.problem = with;
      test::expect_fault(plan, Fault::malformed, text);
      test::expect_fault(plan, Fault::malformed, "(collective)");
    }
  };
  Problem gather{Operator::all_gather_gemm, 64, 48, 32, 2, Type::bf16}, with = gather;
  with.lda = 40;
  expect(gather, with,
         "a collective works on rows without gaps, and the rows of operand a are 40 elements apart, each of 32");
  for (const Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_reduce}) {
    Problem sums{op, 64, 48, 32, 2, Type::bf16};
    with = sums;
    with.ldo = 49;
    expect(sums, with,
           "a collective works on rows without gaps, and the rows of operand out are 49 elements apart, each of 48");
  }
}

}  // namespace
}  // namespace imbrex
