// The operators as users call them, on the CPU: right, several at once, and clear about what they do not take.
#include <gtest/gtest.h>

#include <cstdlib>

#include "imbrex/error.hpp"
#include "imbrex/gpu.hpp"
#include "support/operators.hpp"

namespace imbrex {
namespace {

using test::OperatorCase;

constexpr Operator operators[] = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                  Operator::gemm_all_to_all};

OperatorOptions on_cpu() {
  OperatorOptions options;
  options.device = Device::cpu;
  return options;
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

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
  for (int round = 0; round < 3; ++round)
    for (auto& c : cases) {
      const std::shared_ptr<void> memory = c->op().allocate_output();
      if (!c->a_scale().empty())
        c->op()(c->operands(memory.get()));
      else if (c->bias().empty())
        c->op()(c->a().data(), c->b().data(), memory.get());
      else
        c->op()(c->a().data(), c->b().data(), c->bias().data(), memory.get());
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

TEST(Operators, AskForScalesWhereTheProblemHasThem) {
  const int code = run_threads(1, {.heap_bytes = 1 << 24}, [](World& world) {
    GemmAllReduce op{world, {.m = 8, .n = 8, .k = 8, .type = Type::e4m3, .scales = Scales::tensor}, on_cpu()};
    GemmAllReduce without{world, {.m = 8, .n = 8, .k = 8, .type = Type::e4m3}, on_cpu()};
    std::vector<float> x(64);
    const float one = 1;
    EXPECT_NE(error_of([&] { op(x.data(), x.data(), x.data()); }).find("those of A are not given"), std::string::npos);
    EXPECT_NE(error_of([&] {
                op(Operands{x.data(), x.data(), x.data(), nullptr, &one});
              }).find("those of B are not given"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                without(Operands{x.data(), x.data(), x.data(), nullptr, &one, &one});
              }).find("scales are given, and the problem has none"),
              std::string::npos);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(Operators, RefuseStreamsOnTheCpu) {
  const int code = run_threads(1, {.heap_bytes = 1 << 24}, [](World& world) {
    GemmAllReduce op{world, {.m = 8, .n = 8, .k = 8, .type = Type::fp32}, on_cpu()};
    EXPECT_EQ(op.device(), Device::cpu);
    std::vector<float> x(64);
    EXPECT_NE(error_of([&] { op(x.data(), x.data(), x.data(), nullptr); }).find("runs on the CPU"), std::string::npos);
    EXPECT_NE(error_of([&] { op.synchronize(nullptr); }).find("stream of CUDA"), std::string::npos);
    return 0;
  });
  EXPECT_EQ(code, 0);
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
    return op.device() == Device::cpu ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(message.starts_with("device cuda: rank 0: ")) << message;
}

TEST(Operators, AskForABiasWhereTheShapeHasOne) {
  const int code = run_threads(1, {.heap_bytes = 1 << 24}, [](World& world) {
    std::vector<float> x(64);
    GemmAllReduce with{world, {.m = 8, .n = 8, .k = 8, .type = Type::fp32, .bias = true}, on_cpu()};
    EXPECT_NE(error_of([&] { with(x.data(), x.data(), x.data()); }).find("has a bias, and none is given"),
              std::string::npos);
    GemmAllReduce without{world, {.m = 8, .n = 8, .k = 8, .type = Type::fp32}, on_cpu()};
    const float* bias = x.data();
    EXPECT_NE(error_of([&] { without(x.data(), x.data(), bias, x.data()); }).find("the problem has none"),
              std::string::npos);
    return 0;
  });
  EXPECT_EQ(code, 0);
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
