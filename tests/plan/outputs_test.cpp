// Several B for one gathered A, and the gathered A as an output: what the checker proves of such plans, how they
// travel, and in which order tiles come.
#include <gtest/gtest.h>

#include <set>

#include "imbrex/error.hpp"
#include "plan/expect_fault.hpp"
#include "plan/operand_buffers.hpp"
#include "plan/refusal_of.hpp"

namespace imbrex {
namespace {

using test::expect_fault;

Problem three_outputs(bool bias = true) {
  Problem problem{Operator::all_gather_gemm, 64, 48, 32, 2, Type::bf16, bias};
  problem.more_n = {16, 32};
  problem.gathered_a = true;
  return problem;
}

Knobs outputs_knobs(Transport transport = Transport::push) {
  return {.tile_m = 8, .tile_n = 8, .cluster = 1, .group = 2, .transport = transport};
}

void expect_refused(const Problem& problem, const std::string& text) {
  EXPECT_NE(test::refusal_of(problem).find(text), std::string::npos)
      << test::refusal_of(problem) << "; expected: " << text;
}

TEST(Outputs, AreRefusedByName) {
  EXPECT_EQ(test::refusal_of(three_outputs()), "");
  for (const Operator op : {Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all}) {
    Problem problem{op, 64, 48, 32, 2, Type::bf16};
    problem.more_n = {16, 0};
    expect_refused(problem, "more_n holds 16 with " + std::string(name_of(op)));
    problem.more_n = {};
    problem.gathered_a = true;
    expect_refused(problem, "gathered_a with " + std::string(name_of(op)));
  }
  Problem problem = three_outputs();
  problem.more_n = {0, 16};
  expect_refused(problem, "more_n = 0, 16: there is a third B without a second one");
  problem.more_n = {17, 0};
  expect_refused(problem, "more_n = 17 does not divide by 2 ranks");
  problem.more_n = {-2, 0};
  expect_refused(problem, "more_n holds -2");
  problem.more_n = {(std::int64_t{1} << 31) - 2, 0};
  expect_refused(problem, "together: they may be 2147483647");
  problem = three_outputs();
  problem.type = Type::e4m3;
  EXPECT_EQ(test::refusal_of(problem), "");
  problem.scales = Scales::tensor;
  expect_refused(problem, "more_n holds 16 with scales tensor");
  problem.more_n = {};
  EXPECT_EQ(test::refusal_of(problem), "");
}

TEST(Outputs, OperandsHaveNamesAndPlaces) {
  const Problem problem = three_outputs();
  std::string names;
  for (const OperandInfo& info : operands_of(problem)) names += std::string(info.name) + " ";
  EXPECT_EQ(names, "a b bias out b1 bias1 out1 b2 bias2 out2 gathered ");
  const std::vector<OperandInfo> infos = operands_of(problem);
  EXPECT_EQ(infos[4].rows, 32);
  EXPECT_EQ(infos[4].cols, 8);
  EXPECT_EQ(infos[9].cols, 16);
  EXPECT_EQ(infos[10].rows, 64);
  EXPECT_EQ(infos[10].cols, 32);
  EXPECT_EQ(infos[10].role, OperandRole::output);
  EXPECT_EQ(shapes_of(problem).product.cols, 24 + 8 + 16);
  // Whatever else there is, each operand has one buffer, and each buffer one operand.
  for (const bool bias : {false, true})
    for (int further = 0; further < max_products; ++further)
      for (const Scales scales : {Scales::none, Scales::row}) {
        Problem p{Operator::all_gather_gemm, 64, 48, 32, 2, Type::e4m3, bias, scales};
        if (scales != Scales::none && further > 0) continue;
        for (int i = 0; i < further; ++i) p.more_n[static_cast<std::size_t>(i)] = 16;
        p.gathered_a = true;
        const std::vector<Buffer> buffers = plan::operand_buffers(p);
        ASSERT_EQ(std::ssize(buffers), plan::count_operands(p));
        ASSERT_EQ(buffers.size(), operands_of(p).size());
        EXPECT_EQ(buffers[static_cast<std::size_t>(plan::buffer_gathered(p))].name, "gathered");
        for (int product = 0; product <= further; ++product) {
          const std::string number = product == 0 ? "" : std::to_string(product);
          const auto at = [&](int buffer) { return buffers.at(static_cast<std::size_t>(buffer)); };
          EXPECT_EQ(at(plan::buffer_b_of(p, product)).name, "b" + number);
          EXPECT_EQ(at(plan::buffer_out_of(p, product)).name, "out" + number);
          if (bias) {
            EXPECT_EQ(at(plan::buffer_bias_of(p, product)).name, "bias" + number);
          }
        }
        for (int i = 0; i < std::ssize(buffers); ++i) {
          const std::string& name = buffers[static_cast<std::size_t>(i)].name;
          EXPECT_EQ(plan::is_bias(p, {0, i, 0, 0, 1, 1}), name.starts_with("bias")) << name;
          const plan::OperandPlace place = plan::operand_at(p, i);
          if (name.starts_with("out")) {
            EXPECT_EQ(place.what, plan::OperandPlace::What::out) << name;
            EXPECT_EQ(plan::buffer_out_of(p, place.product), i);
          }
          EXPECT_EQ(place.what == plan::OperandPlace::What::gathered, name == "gathered");
          EXPECT_EQ(place.what == plan::OperandPlace::What::b_scale, name == "b_scale");
        }
      }
}

TEST(Outputs, TravelAsJson) {
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed, Strategy::fused}) {
    const Plan plan = make_plan(three_outputs(), strategy, outputs_knobs());
    const std::string json = to_json(plan);
    EXPECT_NE(json.find(R"("more_n": [16, 32], "gathered_a": true)"), std::string::npos);
    EXPECT_TRUE(parse_plan(json) == plan);
    // Files of before have none of this.
    Problem one = three_outputs();
    one.more_n = {};
    one.gathered_a = false;
    const std::string plain = to_json(make_plan(one, strategy, outputs_knobs()));
    EXPECT_EQ(plain.find("more_n"), std::string::npos);
    EXPECT_EQ(plain.find("gathered_a"), std::string::npos);
  }
  const std::string json = to_json(make_plan(three_outputs(), Strategy::sequential, outputs_knobs()));
  for (const auto& [value, rule] : {std::pair{"[]", "a list of 1 to 2 numbers"},
                                    {"[2, 2, 2]", "a list of 1 to 2"},
                                    {"[2.5]", "is not an integer"}}) {
    std::string spoilt = json;
    spoilt.replace(spoilt.find("[16, 32]"), 8, value);
    try {
      parse_plan(spoilt);
      ADD_FAILURE() << value << " was read";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(rule), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("problem.more_n"), std::string::npos) << error.what();
    }
  }
}

template <typename T>
std::vector<T*> all(Plan& plan, int rank) {
  std::vector<T*> found;
  for (Queue& queue : plan.ranks[static_cast<std::size_t>(rank)].queues)
    for (Task& task : queue.tasks)
      if (auto* work = std::get_if<T>(&task.work)) found.push_back(work);
  return found;
}

// The first tile whose block of that output can be another's, too.
Tile& tile_of(Plan& plan, int product) {
  const int out = plan::buffer_out_of(plan.problem, product);
  for (Tile* tile : all<Tile>(plan, 0))
    if (tile->stores.front().to.buffer == out && tile->b.col == 0) return *tile;
  throw Error(ErrorCode::runtime_failure, "no such tile");
}

TEST(Outputs, OfTilesAreProved) {
  const Problem problem = three_outputs();
  for (const Transport transport : {Transport::push, Transport::pull, Transport::store}) {
    const auto expect = [&](auto&& spoil, Fault fault, const char* text) {
      Plan plan = make_plan(problem, Strategy::fused, outputs_knobs(transport));
      ASSERT_FALSE(check(plan).has_value());
      spoil(plan);
      expect_fault(plan, fault, text);
    };
    // Another B, another bias, another output; an output that no task writes; one that is written twice.
    expect([&](Plan& p) { tile_of(p, 1).b.buffer = plan::buffer_b_of(problem, 2); }, Fault::coverage,
           "which belongs at col");
    expect([&](Plan& p) { tile_of(p, 1).adds.back().buffer = plan::buffer_bias_of(problem, 0); }, Fault::coverage,
           "which belongs at col");
    expect(
        [&](Plan& p) {
          Tile &one = tile_of(p, 1), &two = tile_of(p, 2);
          std::swap(one.stores.front().to.buffer, two.stores.front().to.buffer);
        },
        Fault::coverage, "with what belongs elsewhere");
    expect([&](Plan& p) { tile_of(p, 2).stores.clear(); }, Fault::coverage, "of the output out2 are never written");
    expect([&](Plan& p) { tile_of(p, 1).stores.front().to.buffer = plan::buffer_out_of(problem, 2); }, Fault::coverage,
           "writes too");
    expect([&](Plan& p) { tile_of(p, 2).adds.clear(); }, Fault::coverage, "of out2 on rank 0 without the bias");
  }
}

TEST(Outputs, OfProductsAreProved) {
  const Problem problem = three_outputs();
  for (const Strategy strategy : {Strategy::sequential, Strategy::decomposed}) {
    Plan plan = make_plan(problem, strategy, outputs_knobs());
    ASSERT_FALSE(check(plan).has_value());
    std::vector<Product*> products = all<Product>(plan, 1);
    // One B has a product of all rows; or one of the own rows, and two chunks of each other rank's.
    ASSERT_EQ(products.size(), strategy == Strategy::sequential ? 3u : 3u * (1 + 2 * (problem.ranks - 1)));
    // The B, and its bias, of another output: of other columns, whatever their number is.
    products[1]->b.buffer = plan::buffer_b_of(problem, 0);
    products[1]->b.col = 0;
    expect_fault(plan, Fault::coverage, "which belongs at col");
    products[1]->bias.buffer = plan::buffer_bias_of(problem, 0);
    expect_fault(plan, Fault::coverage, "of out1 on rank 1 with what belongs elsewhere");
  }
}

TEST(Outputs, GatheredAIsProved) {
  Problem problem = three_outputs(false);
  problem.more_n = {};
  const int gathered = plan::buffer_gathered(problem);
  for (const Transport transport : {Transport::push, Transport::pull, Transport::store}) {
    Knobs knobs = outputs_knobs(transport);
    knobs.comm_rows = 8;
    Plan plan = make_plan(problem, Strategy::fused, knobs);
    const auto handed_out = [&] {
      std::vector<Transfer*> found;
      for (Transfer* t : all<Transfer>(plan, 0))
        if (!t->to.empty() && t->to.buffer == gathered) found.push_back(t);
      return found;
    };
    ASSERT_FALSE(check(plan).has_value());
    ASSERT_GE(handed_out().size(), 2u);
    Transfer& last = *handed_out().back();
    const Transfer before = last;
    // Rows that no task hands out, wrong ones, and some twice.
    last = {};
    expect_fault(plan, Fault::coverage, "gathered");
    last = before;
    ASSERT_GT(last.from.rows, 1);
    last.from.rows -= 1, last.to.rows -= 1;
    last.from.row += 1;
    expect_fault(plan, Fault::coverage, "of gathered on rank 0 with what belongs elsewhere");
    last = before;
    *handed_out().front() = before;
    expect_fault(plan, Fault::coverage, "writes too");
  }
  // What has yet to arrive.
  for (const Transport transport : {Transport::push, Transport::store}) {
    Plan plan = make_plan(problem, Strategy::fused, outputs_knobs(transport));
    for (Queue& queue : plan.ranks[0].queues)
      for (Task& task : queue.tasks)
        if (const auto* t = std::get_if<Transfer>(&task.work); t != nullptr && t->to.buffer == gathered)
          task.waits.clear();
    expect_fault(plan, Fault::race, "may read");
  }
}

// No workspace, and no copy but of the own rows, where rows can land in the caller's memory.
TEST(Outputs, GatheredAHasNoCopyWhereItLandsInPlace) {
  Problem problem = three_outputs();
  const Plan sequential = make_plan(problem, Strategy::sequential, outputs_knobs());
  EXPECT_EQ(std::ssize(sequential.buffers), plan::count_operands(problem));
  for (const RankPlan& rank : sequential.ranks)
    for (const Queue& queue : rank.queues)
      for (const Task& task : queue.tasks) EXPECT_FALSE(std::holds_alternative<Transfer>(task.work));
  Plan pulled = make_plan(problem, Strategy::fused, outputs_knobs(Transport::pull));
  EXPECT_EQ(std::ssize(pulled.buffers), plan::count_operands(problem));
  for (const Transfer* t : all<Transfer>(pulled, 0)) {
    EXPECT_TRUE(t->to.empty() || t->to.buffer == plan::buffer_gathered(problem));
  }
}

// A worker that has taken a swizzle group's first tile finds the others of all outputs before other rows.
TEST(Outputs, TilesOfTheSameRowsComeTogether) {
  Plan plan = make_plan(three_outputs(), Strategy::fused, outputs_knobs());
  std::set<std::int64_t> ended;
  std::int64_t now = -1;
  std::set<std::int64_t> outputs;
  for (const Tile* tile : all<Tile>(plan, 0)) {
    const Region& to = tile->stores.front().to;
    const std::int64_t rows = to.row / 16;  // two tile rows
    if (rows != now) {
      EXPECT_TRUE(now < 0 || outputs.size() == 3);
      EXPECT_TRUE(ended.insert(now).second);
      EXPECT_FALSE(ended.contains(rows));
      now = rows;
      outputs.clear();
    }
    outputs.insert(to.buffer);
  }
  EXPECT_EQ(ended.size(), 4u);  // the last one goes on to the end
}

}  // namespace
}  // namespace imbrex
