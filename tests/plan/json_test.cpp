// Plans as text: the round trip, and messages that name the place and the rule.
#include <gtest/gtest.h>

#include <algorithm>

#include "imbrex/error.hpp"
#include "imbrex/plan.hpp"

namespace imbrex {
namespace {

std::string small_plan() {
  return to_json(make_plan({Operator::all_gather_gemm, 8, 8, 8, 2, Type::fp32}, Strategy::fused, {}));
}

void expect_refused(const std::string& text, const std::string& message) {
  try {
    parse_plan(text);
    ADD_FAILURE() << "was read; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

std::string with(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(PlanJson, NamesThePlaceAndTheRule) {
  const std::string good = small_plan();
  EXPECT_TRUE(to_json(parse_plan(good)) == good);
  expect_refused("", "this is not JSON");
  expect_refused("[1, 2", "this is not JSON");
  expect_refused("[]", "is not an object");
  expect_refused(with(good, "\"imbrex_plan\": 1", "\"imbrex_plan\": 2"), "format 2 is not known");
  expect_refused(with(good, "\"ranks\": 2", "\"ranks\": 2.5"), "problem.ranks: 2.5 is not an integer");
  expect_refused(with(good, "\"ranks\": 2", "\"ranks\": 99999999999"), "problem.ranks: 99999999999 is out of range");
  expect_refused(with(good, "\"m\": 8", "\"m\": 18446744073709551615"),
                 "problem.m: 18446744073709551615 is out of range");
  expect_refused(with(good, "\"op\": \"all_gather_gemm\"", "\"op\": \"gemm\""),
                 "problem.op: 'gemm' is not an operator; it must be one of");
  expect_refused(with(good, "\"signal_copies\"", "\"signals_copies\""), "'signals_copies' is not known here");
  expect_refused(with(good, "\"own\": 0", "\"own\": null"), ".tile.own: null is not an integer");
  expect_refused(with(good, "\"tile\": {", "\"tiles\": {"),
                 "ranks[0].queues[0].tasks[0]: the key 'tiles' is not known here");
  expect_refused(with(good, "\"posts\": []", "\"posts\": [[0]]"), "posts[0]: a list of 2 is needed");
}

TEST(PlanJson, NothingIsHiddenAndMessagesStayShort) {
  const std::string good = small_plan();
  expect_refused(with(good, "\"m\": 8", "\"m\": 8, \"m\": 16"), "plan: the key 'm' comes twice in one object");
  expect_refused(with(good, "\"own\": 0", "\"own\": 1, \"own\": 0"), "plan: the key 'own' comes twice in one object");
  const std::string red = R"("\u001b[31m")", shown = R"('\x1b[31m')";
  expect_refused(with(good, "\"signal_copies\"", red), "the key " + shown + " is not known here");
  expect_refused(with(good, "\"all_gather_gemm\"", red), "problem.op: " + shown + " is not an operator");
  expect_refused(with(good, "\"ranks\": 2", "\"ranks\": " + red), "problem.ranks: " + shown + " is not an integer");
  for (const std::string& value : {std::string(5000000, '1'), '"' + std::string(5000000, 'n') + '"'}) {
    std::string message;
    try {
      parse_plan(with(good, "\"ranks\": 2", "\"ranks\": " + value));
    } catch (const Error& error) {
      message = error.what();
    }
    EXPECT_FALSE(message.empty());
    EXPECT_LT(message.size(), 200u) << message.substr(0, 400);
  }
}

TEST(PlanJson, CollectivesNameTheirRanks) {
  Knobs knobs;
  knobs.nodes = 2;
  const std::string text =
      to_json(make_plan({Operator::all_gather_gemm, 8, 8, 8, 4, Type::fp32}, Strategy::sequential, knobs));
  EXPECT_NE(text.find("\"nodes\": 2"), std::string::npos);
  EXPECT_NE(text.find("\"ranks\": [1, 3]}"), std::string::npos) << text;
  EXPECT_TRUE(to_json(parse_plan(text)) == text);
  expect_refused(with(text, "\"ranks\": [1, 3]}", "\"ranks\": 3}"), ".collective.ranks: 3 is not a list");
  // Files from before there were nodes.
  EXPECT_EQ(parse_plan(with(small_plan(), "\"nodes\": 1, ", "")).knobs.nodes, 1);
}

TEST(PlanJson, TasksNameTheirMates) {
  const std::string text =
      to_json(make_plan({Operator::gemm_reduce_scatter, 512, 128, 8, 2, Type::bf16}, Strategy::fused, {}));
  EXPECT_TRUE(to_json(parse_plan(text)) == text);
  EXPECT_EQ(parse_plan(text).ranks[0].queues[0].tasks.at(1).mate, 1);
  const auto mates = [](const Plan& plan) {
    const auto& tasks = plan.ranks[0].queues[0].tasks;
    return std::count_if(tasks.begin(), tasks.end(), [](const Task& task) { return task.mate != 0; });
  };
  // Files from before there were pairs.
  EXPECT_EQ(mates(parse_plan(text)), 2);
  EXPECT_EQ(mates(parse_plan(with(text, ", \"mate\": 1", ""))), 1);
  expect_refused(with(text, "\"mate\": 1", "\"mate\": true"),
                 "ranks[0].queues[0].tasks[1].mate: true is not an integer");
  expect_refused(with(text, "\"mate\": 1", "\"mates\": 1"), "the key 'mates' is not known here");
}

TEST(PlanJson, ScalesAndMatricesByColumns) {
  Problem problem{Operator::all_gather_gemm, 8, 8, 16, 2, Type::e4m3, true, Scales::row};
  const std::string text = to_json(make_plan(problem, Strategy::fused, {}));
  EXPECT_NE(text.find("\"type\": \"e4m3\", \"bias\": true, \"scales\": \"row\"}"), std::string::npos) << text;
  EXPECT_NE(text.find("\"name\": \"b\", \"role\": \"input\", \"layout\": \"column_major\", \"type\": \"e4m3\""),
            std::string::npos);
  EXPECT_NE(text.find("\"name\": \"bias\", \"role\": \"input\", \"layout\": \"row_major\", \"type\": \"bf16\""),
            std::string::npos);
  EXPECT_NE(text.find("\"a_scale\": [0, 4, 0, 0, 4, 1]"), std::string::npos);
  EXPECT_TRUE(to_json(parse_plan(text)) == text);
  expect_refused(with(text, "\"scales\": \"row\"", "\"scales\": \"rows\""),
                 "problem.scales: 'rows' is not a kind of scales; it must be one of none, tensor, row");
  expect_refused(with(text, "\"a_scale\": [0, 4, 0, 0, 4, 1]", "\"a_scale\": [0, 4, 0, 0, 4]"),
                 ".tile.a_scale: a list of 6 numbers is needed");
}

TEST(PlanJson, TheLayoutOfB) {
  const Problem by_rows{Operator::gemm_reduce_scatter, 8, 8, 16, 2, Type::fp16};
  Problem by_columns = by_rows;
  by_columns.b_layout = Layout::column_major;
  // A file that says nothing of it is one of before.
  EXPECT_EQ(to_json(make_plan(by_rows, Strategy::fused, {})).find("b_layout"), std::string::npos);
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed, Strategy::fused}) {
    const Plan plan = make_plan(by_columns, strategy, {.partial = Type::fp16});
    const std::string text = to_json(plan);
    EXPECT_NE(text.find("\"type\": \"fp16\", \"b_layout\": \"column_major\"}"), std::string::npos) << text;
    EXPECT_TRUE(parse_plan(text) == plan);
    EXPECT_FALSE(check(plan).has_value());
    const auto fault = check(parse_plan(with(text, ", \"b_layout\": \"column_major\"", "")));
    ASSERT_TRUE(fault.has_value());
    EXPECT_NE(fault->message.find("must be the caller's 8 x 8 fp16, row_major"), std::string::npos) << fault->message;
    expect_refused(
        with(text, "\"b_layout\": \"column_major\"", "\"b_layout\": \"by_columns\""),
        "problem.b_layout: 'by_columns' is not a layout; it must be one of row_major, column_major, fragment");
  }
}

TEST(Problem, NamesTheValueAndTheRule) {
  const auto expect = [](const Problem& problem, const std::string& message) {
    try {
      make_plan(problem, Strategy::fused, {});
      ADD_FAILURE() << "was accepted; expected: " << message;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
    }
  };
  expect({Operator::all_gather_gemm, 8, 8, 8, 65, Type::bf16}, "ranks = 65");
  expect({Operator::all_gather_gemm, 0, 8, 8, 2, Type::bf16}, "M = 0");
  expect({Operator::all_gather_gemm, 9, 8, 8, 2, Type::bf16}, "M = 9 does not divide by 2 ranks");
  expect({Operator::gemm_reduce_scatter, 8, 8, 9, 2, Type::bf16}, "K = 9 does not divide by 2 ranks");
  expect({Operator::gemm_all_reduce, 8, 8, 8, 2, Type::bf16, false, Scales::tensor},
         "scales = tensor with type bf16: only e4m3 has scales");
  expect({Operator::gemm_all_reduce, 8, 8, 8, 2, Type::bf16, false, Scales::none, Layout::fragment},
         "b_layout = fragment: it must be row_major or column_major");
  expect({Operator::gemm_all_reduce, 8, 8, 8, 2, Type::e4m3, false, Scales::none, Layout::column_major},
         "b_layout = column_major with type e4m3: B of e4m3 lies so always, and the default must stay");
  Knobs spanning;
  spanning.span_shards = true;
  EXPECT_THROW(
      make_plan({Operator::all_gather_gemm, 8, 8, 8, 2, Type::e4m3, false, Scales::tensor}, Strategy::fused, spanning),
      Error);
  EXPECT_THROW(
      make_plan({Operator::gemm_all_reduce, 8, 8, 8, 2, Type::e4m3}, Strategy::sequential, {.partial = Type::e4m3}),
      Error);
  Knobs knobs;
  knobs.own_shift = -1;
  EXPECT_THROW(make_plan({Operator::all_gather_gemm, 8, 8, 8, 2, Type::bf16}, Strategy::fused, knobs), Error);
  knobs = {};
  knobs.nodes = 2;
  EXPECT_THROW(make_plan({Operator::all_gather_gemm, 9, 9, 8, 3, Type::bf16}, Strategy::sequential, knobs), Error);
  EXPECT_THROW(make_plan({Operator::all_gather_gemm, 8, 8, 8, 4, Type::bf16}, Strategy::fused, knobs), Error);
  EXPECT_THROW(make_plan({Operator::gemm_all_to_all, 8, 8, 8, 4, Type::bf16}, Strategy::sequential, knobs), Error);
}

}  // namespace
}  // namespace imbrex
