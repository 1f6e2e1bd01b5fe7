// What follows from a call's operands: the operator that is made of it takes them, and what makes no call is refused by
// name, value and rule.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "imbrex/c.h"
#include "imbrex/problem.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::Random;

constexpr int cases = 60, most_operands = 16;  // for each number of ranks
constexpr imbrex_operator_kind kinds = IMBREX_GEMM_ALL_TO_ALL + 1;

imbrex_view view_of(imbrex_type type, std::vector<std::int64_t> extents, std::vector<std::int64_t> strides = {}) {
  if (strides.empty()) {
    std::int64_t step = 1;
    strides.resize(extents.size());
    for (std::size_t i = extents.size(); i-- > 0;) strides[i] = std::exchange(step, step * extents[i]);
  }
  imbrex_view view{nullptr, type, static_cast<std::int32_t>(extents.size()), {}, {}};
  std::copy(extents.begin(), extents.end(), view.extents);
  std::copy(strides.begin(), strides.end(), view.strides);
  return view;
}

// A call, and what is told of it.
struct Asked {
  imbrex_operator_kind kind = IMBREX_ALL_GATHER_GEMM;
  std::int32_t ranks = 1, dim = 0;
  bool gathered_a = false;
  std::vector<imbrex_operand> operands{};

  imbrex_gemm gemm{};
  imbrex_results results{};
  std::vector<imbrex_operand> taken{};

  imbrex_status infer() {
    const imbrex_call call{sizeof call, kind, ranks, dim, gathered_a ? 1 : 0, operands.data(), operands.size()};
    gemm.size = sizeof gemm;
    results.size = sizeof results;
    taken.resize(most_operands);
    std::uint64_t count = taken.size();
    const imbrex_status status = imbrex_operator_infer(&call, &gemm, &results, taken.data(), &count);
    taken.resize(status == IMBREX_OK ? count : 0);
    return status;
  }
  std::string refusal() {
    const imbrex_status status = infer();
    EXPECT_TRUE(status == IMBREX_OK || status == IMBREX_INVALID_INPUT) << imbrex_error_message();
    return status == IMBREX_OK ? "nothing was refused" : imbrex_error_message();
  }
  imbrex_view& view(std::string_view name) {
    for (imbrex_operand& operand : operands)
      if (operand.name == name) return operand.view;
    ADD_FAILURE() << name;
    return operands.front().view;
  }
};

imbrex_operator_rules rules_of(imbrex_operator_kind kind, imbrex_type type, std::int32_t ranks) {
  imbrex_operator_rules rules{};
  rules.size = sizeof rules;
  EXPECT_EQ(imbrex_operator_rules_of(kind, type, ranks, &rules), IMBREX_OK) << imbrex_error_message();
  return rules;
}

// A of two or three dimensions whose `dim`, in front, has rows that lie evenly, perhaps apart.
imbrex_view random_rows(Random& random, imbrex_type type, const std::vector<std::int64_t>& extents, int dim) {
  const std::int64_t cols = extents.back(), pitch = cols + (random.chance(0.3) ? random.between(1, 9) : 0);
  if (extents.size() == 2) return view_of(type, extents, {pitch, 1});
  std::vector<std::int64_t> strides{pitch, pitch, 1};
  strides[static_cast<std::size_t>(dim)] = pitch * extents[static_cast<std::size_t>(1 - dim)];
  return view_of(type, extents, strides);
}

imbrex_view random_b(Random& random, imbrex_type type, std::int64_t rows, std::int64_t cols, bool columns) {
  const std::int64_t gap = random.chance(0.3) ? random.between(1, 9) : 0;
  if (!columns) return view_of(type, {rows, cols}, {cols + gap, 1});
  return view_of(type, {rows, cols}, {1, rows + gap});
}

Asked random_call(Random& random, std::int32_t ranks) {
  Asked call;
  call.kind = static_cast<imbrex_operator_kind>(random.between(0, kinds - 1));
  call.ranks = ranks;
  const auto type = random.one_of<imbrex_type>({IMBREX_BF16, IMBREX_FP16, IMBREX_FP32, IMBREX_E4M3});
  const imbrex_operator_rules rules = rules_of(call.kind, type, ranks);
  const bool three = random.chance(0.5), columns = type == IMBREX_E4M3 || random.chance(0.5);
  call.dim = three && random.chance(0.5) ? 1 : 0;
  const std::int64_t k = random.between(2, 12), n = random.between(2, 12);
  std::vector<std::int64_t> a(three ? 3 : 2);
  for (std::int64_t& extent : a) extent = random.between(1, 4);
  a[static_cast<std::size_t>(call.dim)] *= ranks;  // which some operators ask for
  a.back() = k;
  call.operands = {{"a", random_rows(random, type, a, call.dim)}, {"b", random_b(random, type, k, n, columns)}};
  const bool bias = random.chance(0.4);
  if (bias) call.operands.push_back({"bias", view_of(rules.out_type, {n})});
  if (type == IMBREX_E4M3 && random.chance(0.6)) {
    const bool of_tensor = random.chance(0.5);
    const std::int64_t rows = std::accumulate(a.begin(), a.end() - 1, std::int64_t{1}, std::multiplies<>());
    call.operands.push_back({"a_scale", of_tensor ? view_of(IMBREX_FP32, {}) : view_of(IMBREX_FP32, {rows, 1})});
    call.operands.push_back({"b_scale", of_tensor ? view_of(IMBREX_FP32, {1}) : view_of(IMBREX_FP32, {1, n})});
  } else if (rules.several_b) {
    const auto further = random.between(0, 2);
    for (int i = 0; i < further; ++i) {
      const std::int64_t width = random.between(2, 12);
      call.operands.push_back({i == 0 ? "b1" : "b2", random_b(random, type, k, width, columns)});
      if (bias) call.operands.push_back({i == 0 ? "bias1" : "bias2", view_of(rules.out_type, {width})});
    }
  }
  call.gathered_a = rules.several_b && random.chance(0.4);
  if (random.chance(0.4)) {
    std::vector<std::int64_t> out = a;
    auto& split = out[static_cast<std::size_t>(call.dim)];
    split = split * rules.rows_times / rules.rows_over;
    out.back() = n;
    call.operands.push_back({"out", random_rows(random, rules.out_type, out, call.dim)});
  }
  for (std::size_t i = call.operands.size(); i-- > 1;)
    std::swap(call.operands[i],
              call.operands[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(i)))]);
  return call;
}

std::int64_t count_of(const imbrex_view& view) {
  return std::accumulate(view.extents, view.extents + view.dims, std::int64_t{1}, std::multiplies<>());
}

// What the operator says of itself is what was told before it was there.
void expect_same(const Asked& call, const imbrex_operator* op) {
  ASSERT_EQ(static_cast<std::int32_t>(call.taken.size()), imbrex_operator_operands(op));
  for (std::size_t i = 0; i < call.taken.size(); ++i) {
    const auto& [name, view] = call.taken[i];
    imbrex_operand_info info{};
    info.size = sizeof info;
    ASSERT_EQ(imbrex_operator_operand(op, static_cast<std::int32_t>(i), &info), IMBREX_OK);
    SCOPED_TRACE(name);
    EXPECT_STREQ(name, info.name);
    EXPECT_EQ(view.type, info.view.type);
    EXPECT_EQ(count_of(view), info.rows * info.cols);
    if (view.dims != 2) continue;
    for (int d = 0; d < 2; ++d) {
      EXPECT_EQ(view.extents[d], info.view.extents[d]);
      if (view.extents[d] > 1) {
        EXPECT_EQ(view.strides[d], info.view.strides[d]);
      }
    }
  }
}

// Results have the dimensions of a, lie without gaps, and are as large as the operator's.
void expect_results(Asked& call) {
  const imbrex_operator_rules rules = rules_of(call.kind, call.view("a").type, call.ranks);
  const imbrex_view a = call.view("a");
  const auto expect = [&](const char* name, const imbrex_view& result, imbrex_type type) {
    SCOPED_TRACE(name);
    const auto taken = std::find_if(call.taken.begin(), call.taken.end(),
                                    [&](const imbrex_operand& one) { return std::string_view(one.name) == name; });
    ASSERT_EQ(result.dims != 0, taken != call.taken.end());
    if (result.dims == 0) return;
    EXPECT_EQ(result.type, type);
    ASSERT_EQ(result.dims, a.dims);
    EXPECT_EQ(result.data, nullptr);
    EXPECT_EQ(count_of(result), count_of(taken->view));
    std::int64_t step = result.extents[a.dims - 1];
    EXPECT_EQ(result.strides[a.dims - 1], 1);
    for (int d = a.dims - 2; d >= 0; --d) {
      const std::int64_t own = d == call.dim ? a.extents[d] * rules.rows_times / rules.rows_over : a.extents[d];
      EXPECT_EQ(result.extents[d], own) << "dimension " << d;
      if (d != call.dim) {
        EXPECT_EQ(result.strides[d], std::exchange(step, step * own));
      }
    }
    EXPECT_EQ(result.strides[call.dim], step);
  };
  expect("out", call.results.out, rules.out_type);
  expect("out1", call.results.more_out[0], rules.out_type);
  expect("out2", call.results.more_out[1], rules.out_type);
  expect("gathered", call.results.gathered, a.type);
}

// Runs the call on zeros.
void run(Asked& call, imbrex_operator* op) {
  std::vector<std::vector<std::byte>> memory;
  for (imbrex_operand& operand : call.taken) {
    std::int64_t last = 1;
    for (int d = 0; d < operand.view.dims; ++d) last += (operand.view.extents[d] - 1) * operand.view.strides[d];
    memory.emplace_back(static_cast<std::size_t>(4 * last));
    operand.view.data = memory.back().data();
  }
  EXPECT_EQ(imbrex_operator_run(op, call.taken.data(), call.taken.size(), nullptr), IMBREX_OK)
      << imbrex_error_message();
}

void rank_main(const imbrex_unique_id& id, std::int32_t rank, std::int32_t ranks, std::uint64_t seed) {
  imbrex_world_options options{};
  options.size = sizeof options;
  options.heap_bytes = 1 << 24;
  options.wait_limit = 60;
  imbrex_world* world = nullptr;
  ASSERT_EQ(imbrex_world_connect(&id, rank, ranks, &options, &world), IMBREX_OK) << imbrex_error_message();
  Random random(seed);  // the same on every rank
  for (int i = 0; i < cases; ++i) {
    Asked call = random_call(random, ranks);
    SCOPED_TRACE(fmt::format("seed {}, {} ranks, case {}: kind {}", seed, ranks, i, call.kind));
    ASSERT_EQ(call.infer(), IMBREX_OK) << imbrex_error_message();
    imbrex_operator_options on_cpu{};
    on_cpu.size = sizeof on_cpu;
    on_cpu.device = IMBREX_CPU;
    on_cpu.strategy = "sequential";
    imbrex_operator* op = nullptr;
    ASSERT_EQ(imbrex_operator_make(world, call.kind, &call.gemm, &on_cpu, &op), IMBREX_OK) << imbrex_error_message();
    expect_same(call, op);
    expect_results(call);
    run(call, op);
    ASSERT_EQ(imbrex_operator_destroy(op), IMBREX_OK);
  }
  EXPECT_EQ(imbrex_world_destroy(world), IMBREX_OK) << imbrex_error_message();
}

TEST(Infer, TheOperatorSaysTheSameOfItsOperands) {
  const std::uint64_t seed = test::seed_from_environment();
  for (std::int32_t ranks = 1; ranks <= 5; ++ranks) {
    imbrex_unique_id id;
    ASSERT_EQ(imbrex_make_unique_id(&id), IMBREX_OK);
    std::vector<std::thread> threads;
    for (std::int32_t rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { rank_main(id, rank, ranks, seed + static_cast<std::uint64_t>(ranks)); });
    for (std::thread& thread : threads) thread.join();
  }
}

Asked simple(imbrex_operator_kind kind = IMBREX_ALL_GATHER_GEMM, std::int32_t ranks = 4) {
  Asked call;
  call.kind = kind;
  call.ranks = ranks;
  call.operands = {{"a", view_of(IMBREX_FP32, {8, 6})}, {"b", view_of(IMBREX_FP32, {6, 4})}};
  return call;
}

TEST(Infer, WhatMakesNoCallIsRefused) {
  const auto with = [](const char* name, const imbrex_view& view, Asked call = simple()) {
    call.operands.push_back({name, view});
    return call;
  };
  const auto as = [](const char* name, const imbrex_view& view, Asked call = simple()) {
    call.view(name) = view;
    return call;
  };
  const auto rows = view_of(IMBREX_FP32, {6, 4});
  const Asked listed = with("b1", rows);
  Asked fp8 = as("b", view_of(IMBREX_E4M3, {6, 4}, {1, 6}), as("a", view_of(IMBREX_E4M3, {8, 6})));
  const Asked three = as("a", view_of(IMBREX_FP32, {2, 4, 6}));
  Asked seven = simple(), along = three, past = simple(), many = simple(), none = simple(), unnamed = simple(),
        gathered = simple(IMBREX_GEMM_ALL_REDUCE), without_a = simple(), without_b = simple();
  seven.kind = 7, along.dim = 1, past.dim = 1, many.ranks = 65, none.ranks = 0;
  unnamed.operands[1].name = nullptr, gathered.gathered_a = true;
  without_a.operands.erase(without_a.operands.begin()), without_b.operands.pop_back();
  const std::pair<Asked, const char*> refused[] = {
      {seven, "kind = 7: it must be from 0 to 3"},
      {many, "ranks = 65: it must be from 1 to 64"},
      {none, "ranks = 0: it must be from 1 to 64"},
      {unnamed, "operands[1].name is null"},
      {without_a, "operand a is missing"},
      {without_b, "operand b is missing"},
      {with("weight", rows), "operand weight: all_gather_gemm has none of that name"},
      {with("b", rows), "operand b is given twice"},
      {as("a", view_of(9, {8, 6})), "operand a is of type 9; types are 0 (bf16)"},
      {as("a", view_of(IMBREX_INT32, {8, 6})), "a is of type int32: it must be bf16, fp16, fp32 or e4m3"},
      {as("a", {nullptr, IMBREX_FP32, 5, {}, {}}), "a has 5 dimensions: there may be 0 to 4"},
      {as("b", {nullptr, IMBREX_FP32, -1, {}, {}}), "b has -1 dimensions: there may be 0 to 4"},
      {as("a", view_of(IMBREX_FP32, {-8, 6})), "a is -8 x 6: no extent may be negative"},
      {as("a", view_of(IMBREX_FP32, {6})), "a is 6: it must have 2 or 3 dimensions"},
      {as("a", view_of(IMBREX_FP32, {})), "a is one element: it must have 2 or 3 dimensions"},
      {as("b", view_of(IMBREX_FP32, {1, 6, 4})), "b is 1 x 6 x 4: it must have 2 dimensions"},
      {past, "dim = 1 with a of 8 x 6: it must be a dimension of a before its last"},
      {as("b", view_of(IMBREX_BF16, {6, 4})), "a is of type fp32, b of type bf16: they must be of one type"},
      {as("b", view_of(IMBREX_FP32, {5, 4})), "a is 8 x 6, b 5 x 4: a's last dimension must be b's first"},
      {as("b", view_of(IMBREX_FP32, {6, 0})), "a is 8 x 6, b 6 x 0: only a's rows may be none"},
      {with("a_scale", view_of(IMBREX_FP32, {1}), fp8), "scales of a and b: both must be given, or neither"},
      {with("b_scale", view_of(IMBREX_FP32, {1}), with("a_scale", view_of(IMBREX_FP32, {1}))),
       "scales with a of type fp32: only e4m3 has scales"},
      {with("bias1", view_of(IMBREX_FP32, {4})), "bias1 is given, and b1 is not"},
      {with("out1", rows), "out1 is given, and b1 is not"},
      {with("b2", rows), "b2 is given, and b1 is not"},
      {with("b1", view_of(IMBREX_FP32, {5, 4})),
       "b1 is 5 x 4 of type fp32, b 6 x 4 of type fp32: they must have as many rows, and one type"},
      {with("b1", view_of(IMBREX_FP16, {6, 4})),
       "b1 is 6 x 4 of type fp16, b 6 x 4 of type fp32: they must have as many rows, and one type"},
      {with("b1", view_of(IMBREX_FP32, {6, 0})), "b1 is 6 x 0 of type fp32, b 6 x 4 of type fp32"},
      {with("b1", view_of(IMBREX_FP32, {6, 4}, {1, 6})), "b1 and b lie by rows and by columns: all must lie alike"},
      {with("bias", view_of(IMBREX_FP32, {4}), listed), "a bias of b, or of b1, is missing: all have one, or none"},
      {with("b1", rows, simple(IMBREX_GEMM_ALL_REDUCE)),
       "more_n holds 4 with gemm_all_reduce: only all_gather_gemm multiplies by several B"},
      {gathered, "gathered_a with gemm_all_reduce: only all_gather_gemm gathers A"},
      {as("a", view_of(IMBREX_FP32, {6, 6}), simple(IMBREX_GEMM_REDUCE_SCATTER)),
       "a is 6 x 6: its dimension 0 must divide by the 4 ranks"},
      {as("a", view_of(IMBREX_FP32, {6, 6}), simple(IMBREX_GEMM_ALL_TO_ALL)),
       "M = 6 does not divide by 4 ranks; gemm_all_to_all splits it over the ranks"},
      {along,
       "a is 2 x 4 x 6 with strides of 24, 6, 1 elements: with dimension 1 in front, its rows must lie evenly: copy it "
       "so"},
      {as("a", view_of(IMBREX_FP32, {2, 4, 6}, {96, 12, 1})), "with dimension 0 in front, its rows must lie evenly"},
      {as("a", view_of(IMBREX_FP32, {2, 4, 6}, {48, 12, 2})),
       "a is 2 x 4 x 6 with strides of 48, 12, 2 elements: its last one must be 1"},
      {with("out", view_of(IMBREX_FP32, {8, 4})), "out is 8 x 4: it must be 32 x 4"},
      {with("out", view_of(IMBREX_FP32, {2, 16, 4})), "out is 2 x 16 x 4: it must be 32 x 4"},
      {with("gathered", view_of(IMBREX_FP32, {8, 6})), "gathered is 8 x 6: it must be 32 x 6"},
      {as("a", view_of(IMBREX_FP32, {std::int64_t{1} << 30, 6}, {6, 1})), "M = 4294967296: it must be from 1 to 2147"},
      {with("b1", view_of(IMBREX_E4M3, {6, 4}, {1, 6}),
            with("b_scale", view_of(IMBREX_FP32, {1}), with("a_scale", view_of(IMBREX_FP32, {1}), fp8))),
       "more_n holds 16 with scales tensor: several B of one A must have none"},
  };
  for (auto [call, text] : refused)
    EXPECT_NE(call.refusal().find(text), std::string::npos) << text << "\n" << imbrex_error_message();
}

TEST(Infer, ArgumentsOfC) {
  Asked call = simple();
  const imbrex_call asked{sizeof asked, call.kind, 4, 0, 0, call.operands.data(), call.operands.size()};
  imbrex_gemm gemm{};
  imbrex_results results{};
  gemm.size = sizeof gemm;
  results.size = sizeof results;
  imbrex_operand operands[most_operands];
  std::uint64_t count = 2;
  const auto refused = [](imbrex_status status, const char* text) {
    EXPECT_EQ(status, IMBREX_INVALID_INPUT);
    EXPECT_NE(std::string(imbrex_error_message()).find(text), std::string::npos) << imbrex_error_message();
  };
  refused(imbrex_operator_infer(nullptr, &gemm, &results, nullptr, nullptr), "imbrex_call is null");
  refused(imbrex_operator_infer(&asked, nullptr, &results, nullptr, nullptr), "imbrex_gemm is null");
  refused(imbrex_operator_infer(&asked, &gemm, nullptr, nullptr, nullptr), "imbrex_results is null");
  refused(imbrex_operator_infer(&asked, &gemm, &results, operands, nullptr), "count is null");
  refused(imbrex_operator_infer(&asked, &gemm, &results, operands, &count), "count = 2: the call has 3 operands");
  EXPECT_EQ(imbrex_operator_infer(&asked, &gemm, &results, nullptr, nullptr), IMBREX_OK) << imbrex_error_message();
  EXPECT_EQ(gemm.m, 32);
  gemm.size = 48;
  refused(imbrex_operator_infer(&asked, &gemm, &results, nullptr, nullptr), "imbrex_gemm.size = 48");
}

TEST(Infer, ARankWithoutRowsIsToldAllElse) {
  Asked call = simple(IMBREX_GEMM_REDUCE_SCATTER);
  call.view("a") = view_of(IMBREX_FP32, {0, 6});
  ASSERT_EQ(call.infer(), IMBREX_OK) << imbrex_error_message();
  EXPECT_EQ(call.gemm.m, 0);
  EXPECT_EQ(call.gemm.k, 24);
  EXPECT_EQ(call.results.out.extents[0], 0);
  EXPECT_EQ(call.results.out.extents[1], 4);
  call.view("b") = view_of(IMBREX_FP32, {5, 4});
  EXPECT_NE(call.refusal().find("a is 0 x 6, b 5 x 4: a's last dimension"), std::string::npos);
}

TEST(Infer, RulesAreThoseOfTheDescriptors) {
  const struct {
    bool sums, several_b, times, over;
  } expected[kinds] = {{false, true, true, false}, {true, false, false, true}, {true, false, false, false}, {}};
  for (std::int32_t ranks : {1, 2, 7, 64})
    for (imbrex_operator_kind kind = 0; kind < kinds; ++kind) {
      const imbrex_operator_rules rules = rules_of(kind, IMBREX_E4M3, ranks);
      EXPECT_EQ(rules.name, name_of(static_cast<Operator>(kind)));
      EXPECT_EQ(rules.out_type, IMBREX_BF16);
      EXPECT_EQ(rules_of(kind, IMBREX_FP32, ranks).out_type, IMBREX_FP32);
      EXPECT_EQ(rules.sums != 0, expected[kind].sums);
      EXPECT_EQ(rules.several_b != 0, expected[kind].several_b);
      EXPECT_EQ(rules.rows_times, expected[kind].times ? ranks : 1);
      EXPECT_EQ(rules.rows_over, expected[kind].over ? ranks : 1);
    }
  imbrex_operator_rules rules{};
  rules.size = sizeof rules;
  EXPECT_EQ(imbrex_operator_rules_of(kinds, IMBREX_FP32, 1, &rules), IMBREX_INVALID_INPUT);
  EXPECT_EQ(imbrex_operator_rules_of(0, IMBREX_INT8, 1, &rules), IMBREX_INVALID_INPUT);
  EXPECT_EQ(imbrex_operator_rules_of(0, IMBREX_FP32, 65, &rules), IMBREX_INVALID_INPUT);
  EXPECT_EQ(imbrex_operator_rules_of(0, IMBREX_FP32, 1, nullptr), IMBREX_INVALID_INPUT);
}

}  // namespace
}  // namespace imbrex
