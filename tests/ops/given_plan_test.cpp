// Operators that run a plan which their caller brings.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "plan/digest.hpp"
#include "support/operators.hpp"

namespace imbrex {
namespace {

using test::error_of, test::on_cpu, test::OperatorCase;

constexpr int ranks = 2;
const WorldOptions world_options{.heap_bytes = 1 << 22, .wait_limit = 20};

Problem problem_of(Operator op) { return {op, 64, 64, 64, ranks, Type::bf16}; }

Plan plan_of(Operator op, Strategy strategy, const std::optional<CodecPair>& codec = {}) {
  Knobs knobs{.tile_m = 16, .tile_n = 16};
  if (op != Operator::all_gather_gemm) knobs.transport = Transport::store;
  if (strategy == Strategy::sequential) knobs = {};
  knobs.codec = codec;
  return make_plan(problem_of(op), strategy, knobs);
}

// The last two tiles of rank 0 change places: no strategy makes that plan.
Plan edited(Plan plan) {
  for (Queue& queue : plan.ranks.front().queues)
    for (std::size_t i = queue.tasks.size(); queue.engine == Engine::compute && i-- > 1;) {
      Task &last = queue.tasks[i], &before = queue.tasks[i - 1];
      if (!std::holds_alternative<Tile>(last.work) || !std::holds_alternative<Tile>(before.work)) continue;
      last.mate = before.mate = 0;
      std::swap(last, before);
      return plan;
    }
  return plan;
}

OperatorOptions with(Plan plan) {
  OperatorOptions options = on_cpu();
  options.plan = std::make_shared<const Plan>(std::move(plan));
  return options;
}

// Neither it nor a part of it is chosen anew.
TEST(GivenPlan, RunsAsItStands) {
  for (const Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (const Strategy strategy : {Strategy::fused, Strategy::sequential}) {
      const Plan made = plan_of(op, strategy), plan = edited(made);
      ASSERT_FALSE(check(plan).has_value());
      if (strategy == Strategy::fused) {
        EXPECT_NE(plan::digest_of(plan), plan::digest_of(made)) << name_of(op);
      }
      EXPECT_EQ(run_threads(ranks, world_options,
                            [&](World& world) {
                              OperatorCase c(world, op, test::shape_of(plan.problem), with(plan));
                              EXPECT_EQ(plan::digest_of(c.op().plan()), plan::digest_of(plan));
                              for (int call = 0; call < 3; ++call) {
                                std::vector<std::byte> out(c.out_bytes());
                                c.op().run(c.operands(out.data()));
                                EXPECT_EQ(c.judge(out), "");
                              }
                              return 0;
                            }),
                0)
          << name_of(op);
    }
}

TEST(GivenPlan, HasTheCodecThatItSays) {
  const Plan plan = plan_of(Operator::gemm_all_reduce, Strategy::sequential, parse_codec_pair("int8"));
  EXPECT_EQ(run_threads(ranks, world_options,
                        [&](World& world) {
                          OperatorCase c(world, Operator::gemm_all_reduce, test::shape_of(plan.problem), with(plan));
                          std::vector<std::byte> out(c.out_bytes());
                          c.op().run(c.operands(out.data()));
                          EXPECT_EQ(c.judge(out), "");
                          EXPECT_GT(c.op().codec_report().groups, 0);
                          return 0;
                        }),
            0);
}

TEST(GivenPlan, SaysHowAPackedOutputLies) {
  Problem problem = problem_of(Operator::gemm_all_reduce);
  Knobs knobs{.tile_m = 16, .tile_n = 16, .group = 2, .chunks = 2, .partial = problem.type};
  knobs.packed = true;
  problem.packed = {32, 16};
  const Plan plan = make_plan(problem, Strategy::signaled, knobs);
  ASSERT_FALSE(check(plan).has_value());
  EXPECT_EQ(run_threads(ranks, world_options,
                        [&](World& world) {
                          GemmShape shape = test::shape_of(problem);
                          const auto run = [&](const OperatorOptions& options) {
                            const auto op = test::make_operator(world, problem.op, shape, options);
                            return test::result_of(world, *op, op->plan().problem, 3);
                          };
                          shape.packed = true;
                          OperatorOptions chosen = on_cpu();
                          chosen.strategy = Strategy::signaled, chosen.knobs = knobs;
                          EXPECT_EQ(run(with(plan)), run(chosen));
                          const GemmAllReduce op(world, shape, with(plan));
                          EXPECT_EQ(op.packed_layout().block_rows, 32);
                          EXPECT_EQ(op.packed_layout().block_cols, 16);
                          const std::string in_rows = error_of([&] {
                            shape.packed = false;
                            GemmAllReduce(world, shape, with(plan));
                          });
                          EXPECT_NE(in_rows.find("the plan that is given leaves its output packed"), std::string::npos)
                              << in_rows;
                          return 0;
                        }),
            0);
}

// What is timed are calls: they give what a call does.
TEST(GivenPlan, IsTimed) {
  const Plan plan = edited(plan_of(Operator::gemm_reduce_scatter, Strategy::fused));
  EXPECT_EQ(run_threads(ranks, world_options,
                        [&](World& world) {
                          OperatorCase c(world, plan.problem.op, test::shape_of(plan.problem), with(plan));
                          std::vector<std::byte> out(c.out_bytes());
                          EXPECT_GT(c.op().time(c.operands(out.data()), 4), 0);
                          EXPECT_EQ(c.judge(out), "");
                          EXPECT_EQ(c.op().kernel_name(), "");
                          // One rank's refusal is every rank's, and nothing has been queued.
                          const int runs = world.rank() == 0 ? 3 : 2;
                          const std::string odd = error_of([&] { c.op().time(c.operands(out.data()), runs); });
                          EXPECT_NE(odd.find("runs = 3: it must be an even number"), std::string::npos) << odd;
                          c.op().run(c.operands(out.data()));
                          EXPECT_EQ(c.judge(out), "");
                          OperatorCase any(world, plan.problem.op, {.m = 64, .n = 64, .k = 64, .any_m = true},
                                           on_cpu());
                          EXPECT_NE(error_of([&] { any.op().time(any.operands(out.data()), 2); }).find("of any M"),
                                    std::string::npos);
                          return 0;
                        }),
            0);
}

TEST(GivenPlan, IsRefusedWhereItDoesNotFitOnEveryRank) {
  const Plan plan = plan_of(Operator::gemm_all_reduce, Strategy::fused);
  const auto refused = [&](const GemmShape& shape, const OperatorOptions& options, const std::string& why) {
    EXPECT_EQ(run_threads(ranks, world_options,
                          [&](World& world) {
                            const std::string said = error_of([&] { GemmAllReduce(world, shape, options); });
                            EXPECT_NE(said.find(why), std::string::npos) << said;
                            // What was refused leaves the world as it was.
                            OperatorCase c(world, Operator::gemm_all_reduce, {16, 16, 16}, on_cpu());
                            std::vector<std::byte> out(c.out_bytes());
                            c.op().run(c.operands(out.data()));
                            EXPECT_EQ(c.judge(out), "");
                            return 0;
                          }),
              0);
  };
  const GemmShape shape = test::shape_of(plan.problem);
  OperatorOptions options = with(plan);
  options.strategy = Strategy::fused;
  refused(shape, options, "a plan is given, and a strategy with it");
  options = with(plan);
  options.knobs = Knobs{};
  refused(shape, options, "a plan is given, and knobs with it");
  options = with(plan);
  options.codec = parse_codec_pair("int8");
  refused(shape, options, "a plan is given, and a codec with it");
  GemmShape other = shape;
  other.any_m = true;
  refused(other, with(plan), "a plan is given with any_m");
  other = shape;
  other.packed = true;
  refused(other, with(plan), "packed = true, and the plan that is given leaves its output in rows");
  other = shape;
  other.m = 65;
  refused(other, with(plan), "the plan is of a problem with m = 64, the operator's has 65");
  other = shape;
  other.bias = true;
  refused(other, with(plan), "the plan is of a problem with bias = ");
  refused(shape, with(plan_of(Operator::gemm_reduce_scatter, Strategy::fused)),
          "the plan is of a problem with operator = gemm_reduce_scatter, the operator's has gemm_all_reduce");
}

TEST(GivenPlan, IsTheSameOnEveryRank) {
  const Plan plan = plan_of(Operator::gemm_all_reduce, Strategy::fused), other = edited(plan);
  EXPECT_EQ(run_threads(ranks, world_options,
                        [&](World& world) {
                          const std::string said = error_of([&] {
                            GemmAllReduce(world, test::shape_of(plan.problem), with(world.rank() == 0 ? plan : other));
                          });
                          EXPECT_NE(said.find("plan"), std::string::npos) << said;
                          EXPECT_NE(said.find("rank 1"), std::string::npos) << said;
                          return 0;
                        }),
            0);
}

}  // namespace
}  // namespace imbrex
