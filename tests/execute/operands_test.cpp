// Operands that fit are found, in any order and split as tensors are; others are refused by name, value and rule.
#include "execute/operands.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "imbrex/error.hpp"

namespace imbrex {
namespace {

constexpr Problem with_bias{Operator::gemm_reduce_scatter, 64, 48, 32, 2, Type::bf16, true};
constexpr Problem scaled{Operator::gemm_all_reduce, 64, 48, 32, 2, Type::e4m3, false, Scales::row};

// Room for each operand, in the order of the problem's.
std::byte memory[6][1 << 13];

std::vector<Operand> all_of(const Problem& problem) {
  std::vector<Operand> all;
  for (const OperandInfo& info : operands_of(problem)) all.push_back({info.name, info.at(memory[all.size()])});
  return all;
}

std::string refusal(const Problem& problem, const std::function<void(std::vector<Operand>&)>& spoil) {
  execute::OperandRules rules(problem);
  std::vector<Operand> all = all_of(problem);
  static_cast<void>(rules.resolve(all));
  spoil(all);
  try {
    static_cast<void>(rules.resolve(all));
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    return error.what();
  }
  return "nothing was refused";
}

TEST(Operands, AreListedInTheProblemsOrder) {
  std::vector<std::string_view> names;
  for (const OperandInfo& info : operands_of(with_bias)) names.push_back(info.name);
  EXPECT_EQ(names, (std::vector<std::string_view>{"a", "b", "bias", "out"}));
  const std::vector<OperandInfo> infos = operands_of(scaled);
  ASSERT_EQ(infos.size(), 5u);
  EXPECT_EQ(infos[1], (OperandInfo{"b", OperandRole::input, Type::e4m3, 16, 48, Layout::column_major}));
  EXPECT_EQ(infos[2], (OperandInfo{"a_scale", OperandRole::input, Type::fp32, 64, 1}));
  EXPECT_EQ(infos[4], (OperandInfo{"out", OperandRole::output, Type::bf16, 64, 48}));
}

TEST(Operands, TellHowBLies) {
  Problem problem = with_bias;
  EXPECT_EQ(operands_of(problem)[1].layout, Layout::row_major);
  problem.b_layout = Layout::column_major;
  const OperandInfo info = operands_of(problem)[1];
  EXPECT_EQ(info.layout, Layout::column_major);
  EXPECT_EQ(info.at(memory).strides[0], 1);
  EXPECT_EQ(info.at(memory).strides[1], info.rows);
  // Neither passes for the other.
  const auto refused = [](const Problem& of, Layout layout, const char* says) {
    const OperandInfo b = operands_of(of)[1];
    const std::string message =
        refusal(of, [&](auto& all) { all[1].view = View::matrix(memory[1], b.type, b.rows, b.cols, layout); });
    EXPECT_NE(message.find(says), std::string::npos) << message;
  };
  refused(problem, Layout::row_major, "it must lie by columns");
  refused(with_bias, Layout::column_major, "it must lie by rows");
}

TEST(Operands, AreFoundInAnyOrder) {
  for (const Problem& problem : {with_bias, scaled}) {
    execute::OperandRules rules(problem);
    std::vector<Operand> all = all_of(problem);
    const Addresses first = rules.resolve(all);
    EXPECT_EQ(first.a, memory[0]);
    EXPECT_EQ(first.b, memory[1]);
    EXPECT_EQ(first.out, memory[all.size() - 1]);
    EXPECT_EQ(first.bias, problem.bias ? memory[2] : nullptr);
    EXPECT_EQ(first.b_scale != nullptr, problem.scales != Scales::none);
    std::rotate(all.begin(), all.begin() + 2, all.end());
    EXPECT_EQ(rules.resolve(all), first);
  }
}

TEST(Operands, MayBeSplitAsTensorsAre) {
  execute::OperandRules rules(with_bias);
  std::vector<Operand> all = all_of(with_bias);
  const Addresses whole = rules.resolve(all);
  all[0].view = {memory[0], Type::bf16, 3, {4, 16, 16}, {256, 16, 1}};  // batch, sequence, hidden
  all[2].view = View::vector(memory[2], Type::bf16, 48);
  all[3].view = {memory[3], Type::bf16, 4, {1, 2, 16, 48}, {1536, 768, 48, 1}};
  EXPECT_EQ(rules.resolve(all), whole);
  // The stride of one element says nothing.
  all[2].view = {memory[2], Type::bf16, 2, {1, 48}, {7, 1}};
  EXPECT_EQ(rules.resolve(all), whole);
}

TEST(Operands, ThatDoNotFitAreRefused) {
  const auto refused = [](const std::function<void(std::vector<Operand>&)>& spoil, const std::string& message) {
    EXPECT_EQ(refusal(with_bias, spoil), message);
  };
  refused([](auto& all) { all[0].view.data = nullptr; }, "operand a: its address is null");
  refused([](auto& all) { all[1].view.type = Type::fp16; }, "operand b is of type fp16; it must be bf16");
  refused([](auto& all) { all[0].view.extents[1] = 17; }, "operand a is 64 x 17; it must be 64 x 16");
  refused([](auto& all) { std::swap(all[0].view.extents[0], all[0].view.extents[1]); },
          "operand a is 16 x 64; it must be 64 x 16");
  refused([](auto& all) { all[0].view = View::vector(memory[0], Type::bf16, 64 * 16); },
          "operand a is 1024; it must be 64 x 16");
  refused([](auto& all) { all[0].view.strides[0] = 24; },
          "operand a has strides of 24, 1 elements; it must lie by rows without gaps, with strides of 16 and 1");
  refused([](auto& all) { all[1].view = View::matrix(memory[1], Type::bf16, 16, 48, Layout::column_major); },
          "operand b has strides of 1, 16 elements; it must lie by rows without gaps, with strides of 48 and 1");
  refused(
      [](auto& all) {
        all[0].view = {memory[0], Type::bf16, 3, {4, 16, 16}, {300, 16, 1}};
      },
      "operand a is 4 x 16 x 16; it must be 64 x 16");
  refused([](auto& all) { all[0].view.dims = 5; }, "operand a has 5 extents; there may be 0 to 4");
  refused([](auto& all) { all[0].view.dims = -1; }, "operand a has -1 extents; there may be 0 to 4");
  refused([](auto& all) { all[0].view.dims = 0; }, "operand a is no extents; it must be 64 x 16");
  refused([](auto& all) { all[3].view.extents[0] = 0; }, "operand out has extents 0 x 48; all must be 1 or more");
  refused([](auto& all) { all[3].view.extents[0] = -32; }, "operand out has extents -32 x 48; all must be 1 or more");
  refused([](auto& all) { all.erase(all.begin() + 2); },
          "operand bias is missing; this operator's operands are a, b, bias, out");
  refused([](auto& all) { all.push_back(all[0]); }, "operand a is given twice");
  refused([](auto& all) { all[2].name = "Bias"; },
          "operand Bias: this operator has no operand of that name; its operands are a, b, bias, out");
  EXPECT_EQ(refusal(scaled, [](auto& all) { all[1].view = View::matrix(memory[1], Type::e4m3, 16, 48); }),
            "operand b has strides of 48, 1 elements; it must lie by columns without gaps, with strides of 1 and 16");
  EXPECT_EQ(refusal(scaled, [](auto& all) { all.erase(all.begin() + 3); }),
            "operand b_scale is missing; this operator's operands are a, b, a_scale, b_scale, out");
}

// At the problem's leading dimension and no other, with rows that may be split.
TEST(Operands, LieAtTheProblemsLeadingDimensions) {
  Problem problem = with_bias;
  problem.lda = 24, problem.ldb = 50, problem.ldo = 48;
  execute::OperandRules rules(problem);
  std::vector<Operand> all = all_of(problem);
  EXPECT_EQ(all[0].view.strides[0], 24);
  const Addresses whole = rules.resolve(all);
  all[0].view = {memory[0], Type::bf16, 3, {4, 16, 16}, {16 * 24, 24, 1}};
  EXPECT_EQ(rules.resolve(all), whole);
  const auto refused = [&](const std::function<void(std::vector<Operand>&)>& spoil, const std::string& message) {
    EXPECT_EQ(refusal(problem, spoil), message);
  };
  refused([](auto& a) { a[0].view.strides[0] = 16; },
          "operand a has strides of 16, 1 elements; it must lie by rows at the problem's leading dimension, with "
          "strides of 24 and 1");
  refused([](auto& a) { a[1].view.strides[1] = 2; },
          "operand b has strides of 50, 2 elements; it must lie by rows at the problem's leading dimension, with "
          "strides of 50 and 1");
  refused([](auto& a) { a[3].view.strides[0] = 50; },
          "operand out has strides of 50, 1 elements; it must lie by rows without gaps, with strides of 48 and 1");
  refused(
      [](auto& a) {
        a[0].view = {memory[0], Type::bf16, 3, {4, 16, 16}, {16 * 24 + 8, 24, 1}};
      },
      "operand a is 4 x 16 x 16; it must be 64 x 16");
  problem.b_layout = Layout::column_major;
  problem.ldb = 17;
  EXPECT_EQ(operands_of(problem)[1].at(memory).strides, (std::array<std::int64_t, View::most_dims>{1, 17}));
  EXPECT_EQ(refusal(problem, [](auto&) {}), "nothing was refused");
}

// Their products do not fit 64 bits. Wrapped, they would be those that the operator expects.
TEST(Operands, OfHugeExtentsAreRefused) {
  constexpr std::int64_t big = (std::int64_t{1} << 62) + 16;
  const auto refused = [](const View& a, const std::string& message) {
    EXPECT_EQ(refusal(with_bias, [&](auto& all) { all[0].view = a; }), message);
  };
  refused({memory[0], Type::bf16, 3, {big, 4, 16}, {64, 16, 1}},
          "operand a is 4611686018427387920 x 4 x 16; it must be 64 x 16");
  refused({memory[0], Type::bf16, 3, {4, big, 16}, {256, 16, 1}},
          "operand a is 4 x 4611686018427387920 x 16; it must be 64 x 16");
  refused({memory[0], Type::bf16, 4, {2, big, 2, 16}, {64, 32, 16, 1}},
          "operand a is 2 x 4611686018427387920 x 2 x 16; it must be 64 x 16");
}

// What was refused once is refused again, and what was taken before is still taken.
TEST(Operands, RefusalsLeaveNothingBehind) {
  execute::OperandRules rules(with_bias);
  const std::vector<Operand> good = all_of(with_bias);
  std::vector<Operand> bad = good;
  bad[1].view.extents[0] = 8;
  for (int i = 0; i < 2; ++i) EXPECT_THROW(rules.resolve(bad), Error);
  EXPECT_EQ(rules.resolve(good).b, memory[1]);
  for (int i = 0; i < 2; ++i) EXPECT_THROW(rules.resolve(bad), Error);
  EXPECT_EQ(rules.resolve(good).b, memory[1]);
}

}  // namespace
}  // namespace imbrex
