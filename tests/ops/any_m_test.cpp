// Operators that take any M: the bits of an operator made for each, no collective set-up, and clear refusals.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "imbrex/error.hpp"
#include "ops/plans_by_size.hpp"
#include "runtime/host_world.hpp"
#include "support/operators.hpp"
#include "support/problem_memory.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::error_of, test::on_cpu, test::Random;

constexpr WorldOptions roomy{.heap_bytes = std::size_t{1} << 28, .wait_limit = 60};

// Barriers and gathers that this rank has entered.
std::uint64_t entered(World& world) {
  runtime::ControlBlock& block = dynamic_cast<runtime::HostWorld&>(world).control().block();
  return runtime::word(block.ranks[world.rank()].arrived).load();
}

bool splits_m(Operator op) { return op != Operator::gemm_all_reduce; }

Problem of_size(Problem problem, std::int64_t m) {
  problem.m = m;
  return problem;
}

// One rank's operands of one M, and what an operator made for it gives.
struct Call {
  std::unique_ptr<program::OperandSource> values;
  test::ProblemMemory memory;
  std::vector<std::vector<std::byte>> wanted;

  Call(World& world, const Problem& problem, std::int64_t m, const OperatorOptions& options)
      : values(test::seeded_operands(of_size(problem, m), static_cast<std::uint64_t>(m))),
        memory(of_size(problem, m), *values, world.rank()) {
    const auto fixed = test::make_operator(world, problem.op, test::shape_of(of_size(problem, m)), options);
    run(*fixed);
    wanted = memory.outputs();
  }

  void run(GemmOperator& op) { op.run(memory.operands()); }

  bool right(GemmOperator& op) {
    memory.poison();
    run(op);
    return memory.outputs() == wanted;
  }
};

// A problem, and how it is to be run.
struct Case {
  Problem problem;
  OperatorOptions options = on_cpu();
};

Case random_case(Random& random, int ranks) {
  Case c;
  Problem& p = c.problem;
  p.op = random.one_of(
      {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all});
  p.ranks = ranks;
  p.m = random.between(1, 40) * (splits_m(p.op) ? ranks : 1);
  p.n = random.between(1, 12) * ranks;
  p.k = random.between(1, 12) * ranks;
  p.type = random.one_of({Type::bf16, Type::fp16, Type::fp32, Type::e4m3});
  p.bias = random.chance(0.5);
  if (p.type == Type::e4m3)
    p.scales = random.one_of({Scales::none, Scales::tensor, Scales::row});
  else if (random.chance(0.5))
    p.b_layout = Layout::column_major;
  if (p.op == Operator::all_gather_gemm && random.chance(0.7)) test::add_further(random, p, 12 * ranks);
  if (random.chance(0.7))
    c.options.strategy = random.one_of({Strategy::fused, Strategy::decomposed, Strategy::sequential});
  if (c.options.strategy && random.chance(0.7)) {
    Knobs knobs{.tile_m = 8 * random.between(1, 2), .tile_n = 8 * random.between(1, 2)};
    knobs.partial = output_type(p.type);
    knobs.chunks = static_cast<int>(random.between(1, 4));
    c.options.knobs = knobs;
  }
  const bool sums = p.op == Operator::gemm_all_reduce || p.op == Operator::gemm_reduce_scatter;
  if (sums && (p.type == Type::bf16 || p.type == Type::fp16) && c.options.strategy != Strategy::fused &&
      random.chance(0.5))
    c.options.codec = parse_codec_pair("int8");
  c.options.cpu.workers = static_cast<int>(random.between(1, 2));
  c.options.cpu.testing.first_epoch = random.chance(0.5) ? (std::uint64_t{1} << 32) - 9 : 0;
  if (random.chance(0.7)) {
    c.options.cpu.testing.delays = static_cast<std::uint64_t>(random.between(1, 1 << 30));
    c.options.cpu.testing.max_delay = 1e-4;
  }
  return c;
}

std::string text_of(const Case& c) {
  const Problem& p = c.problem;
  return fmt::format("{} {} x {} x {}, more N {} {}{}, on {} ranks, {}, strategy {}{}{}", name_of(p.op), p.m, p.n, p.k,
                     p.more_n[0], p.more_n[1], p.gathered_a ? ", gathered A" : "", p.ranks, name_of(p.type),
                     c.options.strategy ? name_of(*c.options.strategy) : "any", c.options.knobs ? ", knobs given" : "",
                     c.options.codec ? ", int8" : "");
}

GemmShape shape_of(const Problem& p) {
  GemmShape shape = test::shape_of(p);
  shape.any_m = true;
  return shape;
}

// Every rank draws the same. Sizes come again, one after another and far apart.
int run_sequence(World& world, const Case& c, std::uint64_t seed) {
  Random random(seed);
  const auto op = test::make_operator(world, c.problem.op, shape_of(c.problem), c.options);
  const std::int64_t unit = splits_m(c.problem.op) ? c.problem.ranks : 1;
  std::map<std::int64_t, Call> calls;
  std::vector<std::int64_t> sizes{unit, c.problem.m, unit};
  for (int i = 0; i < 4; ++i) sizes.push_back(unit * random.between(1, c.problem.m / unit));
  for (std::int64_t m : sizes) calls.try_emplace(m, world, c.problem, m, c.options);
  for (int i = 0; i < 24; ++i) sizes.push_back(sizes[static_cast<std::size_t>(random.between(0, 6))]);
  const std::uint64_t before = entered(world);
  for (std::int64_t m : sizes)
    if (!calls.at(m).right(*op))
      throw Error(ErrorCode::unsound, fmt::format("{}: wrong bits for M = {}", text_of(c), m));
  return entered(world) == before ? 0 : 1;
}

TEST(AnyM, GivesTheBitsOfAnOperatorMadeForIt) {
  Random random(test::seed_from_environment());
  for (int i = 0; i < 24; ++i) {
    const int ranks = 1 + i % 4;
    const Case c = random_case(random, ranks);
    const auto seed = static_cast<std::uint64_t>(random.between(0, 1 << 30));
    const auto body = [&](World& world) { return run_sequence(world, c, seed); };
    EXPECT_EQ(i % 3 == 0 ? run_processes(ranks, roomy, body) : run_threads(ranks, roomy, body), 0) << text_of(c);
  }
}

// More sizes than plans are kept: the least recently used ones leave, and come again.
TEST(AnyM, NeedsNoCollectiveSetUpInAThousandCalls) {
  const std::uint64_t seed = test::seed_from_environment();
  for (Operator op : {Operator::all_gather_gemm, Operator::gemm_all_reduce}) {
    const auto body = [&](World& world) {
      Case c{{op, 48 * world.size(), 8, 16, world.size(), Type::fp32}};
      c.options.strategy = Strategy::fused;
      c.options.knobs = Knobs{.tile_m = 16, .tile_n = 8, .partial = Type::fp32};
      const std::int64_t unit = splits_m(op) ? world.size() : 1;
      std::map<std::int64_t, Call> calls;
      for (std::int64_t m = unit; m <= c.problem.m; m += unit) calls.try_emplace(m, world, c.problem, m, c.options);
      const auto any = test::make_operator(world, op, shape_of(c.problem), c.options);
      Random random(seed);
      const std::uint64_t before = entered(world);
      for (int i = 0; i < 1000; ++i) {
        const std::int64_t m = unit * random.between(1, c.problem.m / unit);
        EXPECT_TRUE(calls.at(m).right(*any)) << "call " << i << ", M = " << m;
      }
      EXPECT_EQ(entered(world), before);
      return 0;
    };
    EXPECT_EQ(run_threads(2, roomy, body), 0);
  }
}

// The first byte of the heap that was never used. Asking takes 256 bytes.
std::size_t first_unused(World& world) {
  runtime::HostHeap& heap = runtime::host_world(world).host_heap();
  const std::size_t offset = heap.allocate_unused(1);
  heap.release(offset);
  return offset;
}

// The plan for 125 rows takes more memory than those for 155, 77 and so on.
TEST(AnyM, TakesMoreMemoryWhereFewerRowsNeedIt) {
  const auto body = [](World& world) {
    const Case c{{Operator::gemm_all_reduce, 155, 494, 780, world.size(), Type::fp32}};
    std::map<std::int64_t, Call> calls;
    for (std::int64_t m : {155, 125, 7}) calls.try_emplace(m, world, c.problem, m, c.options);
    const auto op = test::make_operator(world, c.problem.op, shape_of(c.problem), c.options);
    const auto taken_by = [&](std::int64_t m) {
      const std::size_t before = first_unused(world);
      const std::uint64_t entries = entered(world);
      EXPECT_TRUE(calls.at(m).right(*op)) << "M = " << m;
      EXPECT_EQ(entered(world), entries);
      return first_unused(world) - before - 256;
    };
    EXPECT_EQ(taken_by(155), 0u);
    EXPECT_EQ(taken_by(7), 0u);
    EXPECT_GT(taken_by(125), 0u);
    for (std::int64_t m : {7, 125, 155, 155, 125}) EXPECT_EQ(taken_by(m), 0u);
    return 0;
  };
  EXPECT_EQ(run_threads(4, roomy, body), 0);
}

// The same on every rank: nothing has happened, and the operator goes on.
TEST(AnyM, RefusesWhatItWasNotMadeFor) {
  const auto body = [](World& world) {
    const auto all_of = [&](GemmOperator& op, std::int64_t rows_of_a, std::int64_t rows_of_out, float* memory) {
      const View a = View::matrix(memory, Type::fp32, rows_of_a, op.operands()[0].cols);
      const View out = View::matrix(memory, Type::fp32, rows_of_out, op.operands().back().cols);
      return std::vector<Operand>{{"a", a}, op.operand("b", memory), {"out", out}};
    };
    std::vector<float> memory(4096, 7.0f);
    const GemmShape shape{.m = 8, .n = 4, .k = 6, .type = Type::fp32, .any_m = true};
    AllGatherGemm gather(world, shape, on_cpu());
    GemmReduceScatter scatter(world, shape, on_cpu());
    GemmAllReduce reduce(world, shape, on_cpu());
    GemmAllToAll exchange(world, shape, on_cpu());
    const auto refused = [&](GemmOperator& op, std::int64_t rows_of_a, std::int64_t rows_of_out) {
      const std::string message = error_of([&] { op.run(all_of(op, rows_of_a, rows_of_out, memory.data())); });
      EXPECT_EQ(memory, std::vector<float>(4096, 7.0f));
      EXPECT_EQ(message, error_of([&] { op.run_and_wait(all_of(op, rows_of_a, rows_of_out, memory.data())); }));
      return message;
    };
    EXPECT_EQ(refused(gather, 5, 10), "operand a is 5 x 6: M = 10; this operator takes M from 1 to 8");
    EXPECT_EQ(refused(scatter, 10, 5), "operand a is 10 x 3: M = 10; this operator takes M from 1 to 8");
    EXPECT_EQ(refused(reduce, 9, 9), "operand a is 9 x 3: M = 9; this operator takes M from 1 to 8");
    EXPECT_EQ(refused(exchange, 9, 9), "operand a is 9 x 6: M = 9; this operator takes M from 1 to 8");
    EXPECT_EQ(refused(scatter, 7, 3),
              "operand a is 7 x 3: M = 7 does not divide by 2 ranks; gemm_reduce_scatter splits it over the ranks");
    EXPECT_EQ(refused(exchange, 1, 1),
              "operand a is 1 x 6: M = 1 does not divide by 2 ranks; gemm_all_to_all splits it over the ranks");
    EXPECT_EQ(refused(reduce, 0, 1), "operand a has extents 0 x 3; all must be 1 or more");
    EXPECT_EQ(refused(reduce, 3, 4), "operand out is 4 x 4; it must be 3 x 4");
    EXPECT_EQ(refused(gather, 2, 2), "operand out is 2 x 2; it must be 4 x 2");
    EXPECT_EQ(refused(reduce, std::int64_t{1} << 62, 4),
              "operand a is 4611686018427387904 x 3: M = 4611686018427387904; this operator takes M from 1 to 8");
    EXPECT_EQ(error_of([&] { static_cast<void>(gather.operand("out", memory.data(), 9)); }),
              "operand out: M = 9; this operator takes M from 1 to 8");
    for (GemmOperator* op : std::initializer_list<GemmOperator*>{&gather, &scatter, &reduce, &exchange})
      op->run({op->operand("a", memory.data(), 2), op->operand("b", memory.data()),
               op->operand("out", memory.data() + 1024, 2)});
    EXPECT_NE(memory, std::vector<float>(4096, 7.0f));
    // An operator of one M takes no other.
    GemmAllReduce fixed(world, {.m = 8, .n = 4, .k = 6, .type = Type::fp32}, on_cpu());
    EXPECT_EQ(error_of([&] { static_cast<void>(fixed.operand("a", memory.data(), 2)); }),
              "operand a: M = 2; this operator takes M = 8 only");
    EXPECT_EQ(error_of([&] { fixed.run(all_of(fixed, 2, 2, memory.data())); }), "operand a is 2 x 3; it must be 8 x 3");
    return 0;
  };
  EXPECT_EQ(run_threads(2, roomy, body), 0);
}

// Rows that are met grow at random; calls of earlier sizes come between.
TEST(AnyM, GrowsBetweenCalls) {
  const std::uint64_t seed = test::seed_from_environment();
  for (Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                      Operator::gemm_all_to_all}) {
    const auto body = [&](World& world) {
      Case c{{op, 4 * world.size(), 4 * world.size(), 4 * world.size(), world.size(), Type::fp32}};
      c.options.cpu.testing.delays = seed;
      c.options.cpu.testing.max_delay = 1e-4;
      const auto any = test::make_operator(world, op, shape_of(c.problem), c.options);
      Random random(seed);
      std::map<std::int64_t, Call> calls;
      std::int64_t largest = c.problem.m;
      for (int i = 0; i < 12; ++i) {
        if (i % 3 == 2) {
          const std::int64_t before = largest;
          largest = std::max(largest, world.size() * random.between(1, 12 * (i + 1)));
          any->grow(random.chance(0.2) ? before : largest);  // less than before is nothing to do
          any->grow(largest);
          EXPECT_EQ(any->shapes().a.rows, shapes_of(of_size(c.problem, largest)).a.rows);
          EXPECT_EQ(any->plan().problem.m, largest);
        }
        for (int call = 0; call < 6; ++call) {
          const std::int64_t m = world.size() * random.between(1, largest / world.size());
          EXPECT_TRUE(calls.try_emplace(m, world, c.problem, m, c.options).first->second.right(*any)) << "M = " << m;
        }
      }
      return 0;
    };
    EXPECT_EQ(run_threads(3, roomy, body), 0) << name_of(op);
    EXPECT_EQ(run_processes(2, roomy, body), 0) << name_of(op);
  }
}

// A growth that is refused leaves the operator as it was, on every rank.
TEST(AnyM, RefusesToGrowWhereItCannot) {
  std::vector<std::string> differ(3), full(3);
  const auto body = [&](World& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    const Case c{{Operator::gemm_all_reduce, 8, 6, 6, world.size(), Type::fp32}};
    const auto any = test::make_operator(world, c.problem.op, shape_of(c.problem), c.options);
    Call five(world, c.problem, 5, c.options), eight(world, c.problem, 8, c.options);
    differ[rank] = error_of([&] { any->grow(world.rank() == 1 ? 20 : 30); });
    EXPECT_TRUE(five.right(*any));
    full[rank] = error_of([&] { any->grow(200'000); });
    EXPECT_TRUE(eight.right(*any));
    EXPECT_EQ(any->plan().problem.m, 8);
    EXPECT_EQ(error_of([&] { any->grow(-3); }), "");  // it takes as much already
    GemmAllReduce fixed(world, {.m = 8, .n = 6, .k = 6, .type = Type::fp32}, on_cpu());
    EXPECT_EQ(error_of([&] { fixed.grow(9); }), "grow: gemm_all_reduce was made without any_m");
    any->grow(30);
    EXPECT_TRUE(eight.right(*any));
    return 0;
  };
  EXPECT_EQ(run_threads(3, {.heap_bytes = 1 << 22, .wait_limit = 60}, body), 0);
  for (const std::string& message : differ)
    EXPECT_EQ(message, "ranks disagree on a larger M: rank 1 asks for m = 20, ranks 0 and 2 for m = 30");
  for (const std::string& message : full)
    EXPECT_NE(message.find("symmetric heap is full"), std::string::npos) << message;
}

// 64 ranks are more than any host has GPUs.
TEST(AnyM, FallsBackToTheCpuAsOperatorsOfOneMDo) {
  const auto body = [](World& world) {
    const GemmShape any{.m = 8, .n = 4, .k = 64, .type = Type::fp32, .any_m = true},
        one{.m = 8, .n = 4, .k = 64, .type = Type::fp32};
    OperatorOptions options;
    options.strategy = Strategy::sequential;
    options.knobs = Knobs{};
    options.device = Device::cuda;
    const std::string message = error_of([&] { GemmAllReduce(world, any, options); });
    EXPECT_TRUE(message.starts_with("device cuda: ")) << message;
    EXPECT_EQ(message, error_of([&] { GemmAllReduce(world, one, options); }));
    options.device = Device::automatic;
    const GemmAllReduce op(world, any, options);
    EXPECT_EQ(op.device(), Device::cpu);
    EXPECT_EQ("device cuda: " + op.why_cpu(), message);
    return 0;
  };
  EXPECT_EQ(run_threads(64, {.heap_bytes = 1 << 24, .wait_limit = 60}, body), 0);
}

// Rank 1's is of one M, the others' of any.
TEST(AnyM, IsTheSameOnEveryRank) {
  std::vector<std::string> messages(3);
  const auto body = [&](World& world) {
    messages[static_cast<std::size_t>(world.rank())] =
        error_of([&] { GemmAllReduce(world, {.m = 8, .n = 4, .k = 6, .any_m = world.rank() != 1}, on_cpu()); });
    return 0;
  };
  EXPECT_EQ(run_threads(3, roomy, body), 0);
  for (const std::string& message : messages)
    EXPECT_EQ(message, "ranks disagree on an operator: rank 1 asks for any_m = false, ranks 0 and 2 for any_m = true");
}

struct Made final : Execution {
  explicit Made(std::int64_t rows) : m(rows) {}
  Report run(const Addresses&) override { return {}; }
  std::int64_t m;
};

TEST(PlansBySize, DropTheLeastRecentlyUsed) {
  std::vector<std::int64_t> made;
  bool fails = false;
  ops::PlansBySize plans(
      [&](std::int64_t m) -> std::unique_ptr<Execution> {
        if (fails) throw Error(ErrorCode::runtime_failure, "none");
        made.push_back(m);
        return std::make_unique<Made>(m);
      },
      3);
  const auto use = [&](std::int64_t m) { EXPECT_EQ(dynamic_cast<Made&>(plans.at(m)).m, m); };
  for (std::int64_t m : {1, 2, 3, 1, 3}) use(m);
  EXPECT_EQ(made, (std::vector<std::int64_t>{1, 2, 3}));
  fails = true;
  EXPECT_THROW(plans.at(4), Error);
  for (std::int64_t m : {2, 1, 3}) use(m);  // none has left
  fails = false;
  use(4);  // instead of 2
  EXPECT_TRUE(plans.has(4));
  EXPECT_FALSE(plans.has(2));
  for (std::int64_t m : {1, 3, 4}) use(m);
  EXPECT_EQ(made, (std::vector<std::int64_t>{1, 2, 3, 4}));
  use(2);  // instead of 1
  use(1);
  EXPECT_EQ(made, (std::vector<std::int64_t>{1, 2, 3, 4, 2, 1}));
}

}  // namespace
}  // namespace imbrex
