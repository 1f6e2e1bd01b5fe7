// The operators as users call them, on the CPU: right, several at once, and clear about what they do not take.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "imbrex/error.hpp"
#include "imbrex/gpu.hpp"
#include "support/operators.hpp"

namespace imbrex {
namespace {

using test::error_of, test::on_cpu, test::OperatorCase;

constexpr Operator operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                  Operator::gemm_all_to_all};

// All four are alive and take turns.
int take_turns(World& world) {
  std::vector<std::unique_ptr<OperatorCase>> cases;
  for (bool bias : {false, true})
    for (Operator op : operators)
      cases.push_back(std::make_unique<OperatorCase>(world, op, GemmShape{96, 64, 128, Type::bf16, bias}, on_cpu()));
  for (Scales scales : {Scales::tensor, Scales::row})
    for (Operator op : operators)
      cases.push_back(std::make_unique<OperatorCase>(
          world, op, GemmShape{96, 64, 128, Type::e4m3, scales == Scales::row, scales}, on_cpu()));
  for (Type type : {Type::bf16, Type::fp16, Type::fp32, Type::e4m3})
    for (Operator op : operators)
      cases.push_back(std::make_unique<OperatorCase>(
          world, op, GemmShape{.m = 96, .n = 64, .k = 128, .type = type, .b_layout = Layout::column_major}, on_cpu()));
  for (int round = 0; round < 3; ++round)
    for (auto& c : cases) {
      const std::shared_ptr<void> memory = c->op().allocate_output();
      c->op().run(c->operands(memory.get()));
      const auto* bytes = static_cast<const std::byte*>(memory.get());
      if (const std::string wrong = c->judge({bytes, bytes + c->out_bytes()}); !wrong.empty())
        throw Error(ErrorCode::unsound, wrong);
      c->op().check();
    }
  return 0;
}

TEST(Operators, TakeTurnsOnTheCpu) {
  const WorldOptions options{.heap_bytes = 1 << 24, .wait_limit = 20};
  EXPECT_EQ(run_threads(2, options, take_turns), 0);
  EXPECT_EQ(run_processes(4, options, take_turns), 0);
}

// Each asked the BLAS for a buffer of its own, of which it has a few hundred at most: then it wrote where it must not.
int keep_many(World& world) {
  std::vector<std::unique_ptr<OperatorCase>> cases;
  for (int i = 0; i < 600; ++i)
    cases.push_back(std::make_unique<OperatorCase>(
        world, Operator::gemm_all_reduce, GemmShape{.m = 8 + i % 3, .n = 8, .k = 8, .type = Type::fp32}, on_cpu()));
  for (auto& c : cases) {
    std::vector<std::byte> out(c->out_bytes());
    c->op().run(c->operands(out.data()));
    if (const std::string wrong = c->judge(out); !wrong.empty()) throw Error(ErrorCode::unsound, wrong);
  }
  return 0;
}

TEST(Operators, AreAsManyAsTheHeapHolds) {
  const WorldOptions options{.heap_bytes = 1 << 28, .wait_limit = 20};
  EXPECT_EQ(run_threads(2, options, keep_many), 0);
  EXPECT_EQ(run_processes(2, options, keep_many), 0);
}

TEST(Operators, RefuseStreamsOnTheCpu) {
  const int code = run_threads(1, {.heap_bytes = 1 << 24}, [](World& world) {
    GemmAllReduce op{world, {.m = 8, .n = 8, .k = 8, .type = Type::fp32}, on_cpu()};
    EXPECT_EQ(op.device(), Device::cpu);
    EXPECT_EQ(op.why_cpu(), "");
    std::vector<float> x(64), y(64);
    const auto stream = reinterpret_cast<CudaStream>(x.data());  // never looked into
    const std::vector<Operand> all{op.operand("a", x.data()), op.operand("b", x.data()), op.operand("out", y.data())};
    EXPECT_NE(error_of([&] { op.run(all, stream); }).find("works on the CPU"), std::string::npos);
    EXPECT_NE(error_of([&] { op.synchronize(stream); }).find("stream of CUDA"), std::string::npos);
    op.synchronize();
    op.run(all);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

// Every rank gives the same wrong operand: nothing has happened.
int refuse_together(World& world) {
  OperatorCase c(world, Operator::gemm_all_reduce, {64, 32, 48, Type::bf16}, on_cpu());
  std::vector<std::byte> out(c.out_bytes());
  std::vector<Operand> all = c.operands(out.data());
  for (int i = 0; i < 3; ++i) {
    all[0].view.type = Type::fp16;
    if (error_of([&] { c.op().run(all); }) != "operand a is of type fp16; it must be bf16") return 1;
    all[0].view.type = Type::bf16;
    c.op().run(all);
    if (!c.judge(out).empty()) return 1;
  }
  return 0;
}

// One rank gives a wrong operand: all hear of it at once, and the next call is right.
int refuse_alone(World& world) {
  OperatorCase c(world, Operator::gemm_all_reduce, {64, 32, 48, Type::bf16}, on_cpu());
  std::vector<std::byte> out(c.out_bytes());
  std::vector<Operand> all = c.operands(out.data());
  c.op().run(all);
  if (world.rank() == 1) all[2].view.extents[1] = 31;
  const auto begin = std::chrono::steady_clock::now();
  const std::string own = error_of([&] { c.op().run(all); }), fault = "operand out is 64 x 31; it must be 64 x 32";
  if (std::chrono::steady_clock::now() - begin > std::chrono::seconds(2)) return 1;
  if (own != (world.rank() == 1 ? fault : "rank 1 refused this call: " + fault)) return 1;
  all[2].view.extents[1] = 32;
  c.op().run(all);
  return c.judge(out).empty() ? 0 : 1;
}

TEST(Operators, RefuseOperandsOnEveryRank) {
  const WorldOptions options{.heap_bytes = 1 << 24, .wait_limit = 30};
  for (const auto& body : {refuse_together, refuse_alone}) {
    EXPECT_EQ(run_threads(3, options, body), 0);
    EXPECT_EQ(run_processes(3, options, body), 0);
  }
}

// 64 ranks are more than any host has GPUs.
TEST(Operators, SayWhyThereAreNoGpus) {
  std::string message;
  const int code = run_threads(64, {.heap_bytes = 1 << 24, .wait_limit = 60}, [&](World& world) {
    OperatorOptions options;
    options.device = Device::cuda;
    const std::string own = error_of([&] {
      GemmAllReduce op{world, {.m = 8, .n = 8, .k = 64, .type = Type::fp32}, options};
    });
    if (world.rank() == 63) message = own;
    options.device = Device::automatic;
    const GemmAllReduce op{world, {.m = 8, .n = 8, .k = 64, .type = Type::fp32}, options};
    EXPECT_NE(op.why_cpu(), "");
    return op.device() == Device::cpu ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(message.starts_with("device cuda: rank 0: ")) << message;
}

TEST(Operators, RefuseSizesThatDoNotFit) {
  const int code = run_threads(2, {.heap_bytes = 1 << 20}, [](World& world) {
    const std::string message = error_of([&] {
      AllGatherGemm op{world, {.m = 7, .n = 8, .k = 8, .type = Type::bf16}, on_cpu()};
    });
    EXPECT_NE(message.find("M = 7 does not divide by 2 ranks"), std::string::npos) << message;
    return 0;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex
