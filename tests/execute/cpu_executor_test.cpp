// What the CPU executor promises beyond right results: exactness, wrap-around, many epochs, bounded waits, clear
// errors.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"
#include "imbrex/world.hpp"
#include "program/run.hpp"
#include "support/exact_run.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using test::run_exact;

TEST(CpuExecutor, ExactOnIntegersOverManyEpochsWithDelays) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 40; ++i) {
    auto c = test::random_case(random, {.max_ranks = 5, .max_size = 40});
    c.problem.type = c.knobs.partial = Type::fp32;
    SCOPED_TRACE(test::describe(c));
    CpuOptions options;
    options.testing.delays = static_cast<std::uint64_t>(i) + 1;
    options.testing.max_delay = 2e-4;
    options.workers = static_cast<int>(random.between(1, 3));
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    WorldOptions world{.heap_bytes = 1 << 24, .wait_limit = 30};
    ASSERT_EQ(run_threads(c.problem.ranks, world, [&](World& w) { return run_exact(w, plan, options, 6); }), 0);
  }
}

// Tiles that add peers' slots wait at their epilogue, while the worker multiplies those of another queue.
TEST(CpuExecutor, AWaitingTileKeepsItsProduct) {
  Knobs knobs;
  knobs.tile_m = knobs.tile_n = 16;
  knobs.transport = Transport::store;
  Plan plan = make_plan({Operator::gemm_reduce_scatter, 96, 40, 48, 3, Type::fp32}, Strategy::fused, knobs);
  for (RankPlan& rank : plan.ranks) {
    auto& adding = rank.queues.front().tasks;
    Queue sending{Engine::compute, 0, {}, rank.queues.front().tile};
    const auto sends = [](const Task& task) {
      const auto* tile = std::get_if<Tile>(&task.work);
      return tile == nullptr || tile->adds.empty();
    };
    std::copy_if(adding.begin(), adding.end(), std::back_inserter(sending.tasks), sends);
    std::erase_if(adding, sends);
    ASSERT_FALSE(adding.empty());
    rank.queues.push_back(std::move(sending));
  }
  ASSERT_FALSE(check(plan).has_value());
  for (const int workers : {1, 3}) {
    CpuOptions options;
    options.workers = workers;
    WorldOptions world{.heap_bytes = 1 << 22, .wait_limit = 30};
    EXPECT_EQ(run_threads(3, world, [&](World& w) { return run_exact(w, plan, options, 6); }), 0) << workers;
  }
}

TEST(CpuExecutor, CountersWrap) {
  for (Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (Strategy strategy : {Strategy::sequential, Strategy::fused})
      // Counters of 32 bits wrap when epoch / 2 x posts passes 2^32: three posts a signal wrap within these epochs, one
      // post a signal within those.
      for (std::uint64_t first : {std::uint64_t{2} * (0xffffffffu / 3) - 3, (std::uint64_t{1} << 33) - 5}) {
        Knobs knobs;
        knobs.tile_m = knobs.tile_n = 16;
        knobs.transport = op == Operator::all_gather_gemm ? Transport::pull : Transport::store;
        const Plan plan = make_plan({op, 64, 32, 48, 4, Type::fp32}, strategy, knobs);
        CpuOptions options;
        options.testing.first_epoch = first;
        WorldOptions world{.heap_bytes = 1 << 22, .wait_limit = 10};
        EXPECT_EQ(run_threads(4, world, [&](World& w) { return run_exact(w, plan, options, 12); }), 0)
            << name_of(op) << " from epoch " << first;
      }
}

// Runs one epoch, then stays until the world fails.
void run_until_failure(World& world, const Plan& plan) {
  const auto executor = make_cpu_executor(world);
  const auto execution = executor->prepare(plan);
  const RankShapes s = shapes_of(plan.problem);
  const auto floats = [](const Extent& e) { return std::vector<float>(static_cast<std::size_t>(e.rows * e.cols)); };
  const auto a = floats(s.a), b = floats(s.b);
  auto out = floats(s.out);
  execution->run({a.data(), b.data(), out.data()});
  for (;;) {
    world.throw_if_failed();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(CpuExecutor, AWaitPastItsLimitNamesRankTaskSignalExpectedAndSeen) {
  Knobs knobs;
  knobs.transport = Transport::store;
  Plan plan = make_plan({Operator::gemm_reduce_scatter, 64, 32, 48, 2, Type::fp32}, Strategy::fused, knobs);
  // Rank 1 keeps back the post that rank 0's own tile waits for.
  for (Task& task : plan.ranks[1].queues[0].tasks) task.posts.clear();
  WorldOptions world{.heap_bytes = 1 << 22, .wait_limit = 0.3};
  std::vector<std::string> messages(2);
  const int code = run_threads(2, world, [&](World& w) {
    try {
      run_until_failure(w, plan);
      return 0;
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(w.rank())] = error.what();
      return static_cast<int>(error.code());
    }
  });
  EXPECT_EQ(code, 3);
  EXPECT_NE(messages[0].find("rank 0 queue 0 task"), std::string::npos) << messages[0];
  EXPECT_NE(messages[0].find("expected 1 posts, saw 0"), std::string::npos) << messages[0];
}

// All ranks have come to the epoch, so that no longer limit holds.
TEST(CpuExecutor, ALostPostEndsAWaitAfterTheWaitLimit) {
  Knobs knobs;
  knobs.transport = Transport::store;
  Plan plan = make_plan({Operator::gemm_reduce_scatter, 64, 32, 48, 2, Type::fp32}, Strategy::fused, knobs);
  for (Task& task : plan.ranks[1].queues[0].tasks) task.posts.clear();
  const auto begin = std::chrono::steady_clock::now();
  std::string message;
  testing::internal::CaptureStderr();
  run_threads(2, {.heap_bytes = 1 << 22, .wait_limit = 0.5, .entry_limit = 300}, [&](World& w) {
    try {
      run_until_failure(w, plan);
    } catch (const Error& error) {
      if (w.rank() == 0) message = error.what();
    }
    return 0;
  });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
  EXPECT_NE(message.find("waited longer than 0.5 s for signal"), std::string::npos) << message;
}

// In a ring each rank waits for its neighbours alone, but all end.
TEST(CpuExecutor, ARankThatStaysAwayFromARingKeepsNoPeerWaiting) {
  const Plan plan = make_plan({Operator::all_gather_gemm, 64, 32, 48, 4, Type::fp32}, Strategy::decomposed, {});
  WorldOptions world{.heap_bytes = 1 << 22, .wait_limit = 0.3};
  std::vector<std::string> messages(4);
  const auto begin = std::chrono::steady_clock::now();
  const int code = run_threads(4, world, [&](World& w) {
    try {
      if (w.rank() == 2) {
        const auto executor = make_cpu_executor(w);
        const auto execution = executor->prepare(plan);
        for (;;) w.throw_if_failed(), std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      run_until_failure(w, plan);
      return 0;
    } catch (const Error& error) {
      messages[static_cast<std::size_t>(w.rank())] = error.what();
      return static_cast<int>(error.code());
    }
  });
  EXPECT_EQ(code, 3);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  for (const std::string& message : messages)
    EXPECT_NE(message.find("(collective) waited longer than 0.3 s for the other ranks in epoch 0"), std::string::npos)
        << message;
}

TEST(CpuExecutor, ARankThatAnExceptionEndsKeepsNoPeerWaiting) {
  const Plan plan = make_plan({Operator::gemm_reduce_scatter, 64, 32, 48, 2, Type::fp32}, Strategy::fused, {});
  WorldOptions world{.heap_bytes = 1 << 22, .wait_limit = 10};
  std::string message;
  testing::internal::CaptureStderr();
  const int code = run_threads(2, world, [&](World& w) {
    if (w.rank() == 1) {
      const auto executor = make_cpu_executor(w);
      const auto execution = executor->prepare(plan);
      throw std::runtime_error("the caller's own reason");
    }
    try {
      run_until_failure(w, plan);
    } catch (const Error& error) {
      message = error.what();
    }
    return 0;
  });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "imbrex: rank 1: the caller's own reason\n");
  EXPECT_EQ(code, 3);
  EXPECT_EQ(message, "rank 1 failed: the caller's own reason");
}

TEST(CpuExecutor, RefusesWhatDoesNotFit) {
  const Plan plan = make_plan({Operator::gemm_all_reduce, 8, 8, 8, 2, Type::fp32}, Strategy::sequential, {});
  WorldOptions world{.heap_bytes = 1 << 22, .wait_limit = 5};
  EXPECT_EQ(run_threads(1, world, [&](World& w) { return run_exact(w, plan, {}, 1); }), 2);
  Plan outside = plan;
  outside.buffers[0].rows = 4;
  EXPECT_EQ(run_threads(2, world, [&](World& w) { return run_exact(w, outside, {}, 1); }), 2);
}

TEST(Operators, RunAsTheirExamplesSay) {
  WorldOptions options{.heap_bytes = 1 << 24, .wait_limit = 10};
  const int code = run_threads(2, options, [](World& world) {
    GemmReduceScatter op{world, {.m = 16, .n = 8, .k = 32, .type = Type::fp32}};
    const RankShapes s = op.shapes();
    std::vector<float> a(static_cast<std::size_t>(s.a.rows * s.a.cols), 1.0f),
        b(static_cast<std::size_t>(s.b.rows * s.b.cols), 2.0f);
    std::vector<float> out(static_cast<std::size_t>(s.out.rows * s.out.cols));
    op.run({op.operand("a", a.data()), op.operand("b", b.data()), op.operand("out", out.data())});
    for (float v : out)
      if (v != 64.0f) return 1;
    return 0;
  });
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace imbrex
