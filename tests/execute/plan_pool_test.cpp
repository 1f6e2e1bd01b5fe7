// Plans that take turns in one memory: where they lie, what their counters show, and what they compute.
#include "execute/plan_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "execute/cpu/pooled_plans.hpp"
#include "imbrex/error.hpp"
#include "imbrex/world.hpp"

namespace imbrex {
namespace {

using execute::HeapLayout;
using execute::PlanPool;
using execute::PlanShare;

std::shared_ptr<const Plan> plan_of(std::int64_t m, int ranks = 2) {
  const Problem problem{Operator::gemm_all_reduce, m, 8, 8 * ranks, ranks, Type::fp32};
  return std::make_shared<const Plan>(
      make_plan(problem, Strategy::fused, {.tile_m = 8, .tile_n = 8, .partial = Type::fp32}));
}

struct Heap {
  std::vector<std::size_t> asked;
  std::size_t next = 0;
  std::size_t allocate(std::size_t bytes) {
    asked.push_back(bytes);
    return std::exchange(next, next + bytes);
  }
};

// Buffers and counters of both halves, apart from each other and inside the area.
TEST(PlanPool, PlacesPlansInHalves) {
  Heap heap;
  const HeapLayout large(*plan_of(64));
  PlanPool pool([&](std::size_t bytes) { return heap.allocate(bytes); }, large.share(), 0);
  ASSERT_EQ(heap.asked, std::vector<std::size_t>{HeapLayout::bytes_of_halves(large.share())});
  for (std::int64_t m : {1, 8, 63, 64}) {
    const auto plan = plan_of(m);
    HeapLayout layout(*plan);
    EXPECT_EQ(pool.place(layout), 0u);
    EXPECT_EQ(layout.bytes(), heap.asked[0]);
    std::vector<std::pair<std::size_t, std::size_t>> taken;  // begin, end
    for (std::uint64_t epoch : {2, 3}) {
      for (int b = 0; b < std::ssize(plan->buffers); ++b) {
        const Buffer& buffer = plan->buffers[static_cast<std::size_t>(b)];
        if (!layout.in_heap(b)) continue;
        const std::size_t begin = layout.offset(b, epoch);
        taken.emplace_back(begin, begin + static_cast<std::size_t>(buffer.rows * buffer.cols) * size_of(buffer.type));
        EXPECT_EQ(begin % HeapLayout::alignment, 0u);
        EXPECT_EQ(layout.offset(b, epoch + 2), begin);
      }
      for (int signal = 0; signal < layout.signals(0); ++signal)
        taken.emplace_back(layout.counter(signal, epoch), layout.counter(signal, epoch) + 4);
    }
    std::sort(taken.begin(), taken.end());
    for (std::size_t i = 0; i < taken.size(); ++i)
      EXPECT_LE(taken[i].second, i + 1 < taken.size() ? taken[i + 1].first : layout.bytes());
  }
  EXPECT_EQ(heap.asked.size(), 1u);
}

TEST(PlanPool, GrowsForWhatItDoesNotHold) {
  Heap heap;
  PlanPool pool([&](std::size_t bytes) { return heap.allocate(bytes); }, HeapLayout(*plan_of(8)).share(), 0);
  const auto area_of = [&](std::int64_t m) {
    HeapLayout layout(*plan_of(m));
    const std::size_t area = pool.place(layout);
    EXPECT_TRUE(pool.half(area).holds(HeapLayout(*plan_of(m)).share()));
    return area;
  };
  EXPECT_EQ(area_of(64), 1u);
  EXPECT_EQ(area_of(8), 0u);
  EXPECT_EQ(area_of(60), 1u);
  EXPECT_EQ(area_of(512), 2u);
  EXPECT_EQ(area_of(64), 1u);
  EXPECT_EQ(heap.asked.size(), 3u);
  EXPECT_EQ(pool.offset(2), heap.asked[0] + heap.asked[1]);
}

TEST(PlanPool, CountsTheOwnPostsOfEachHalf) {
  PlanPool pool([](std::size_t) { return std::size_t{0}; }, {256, 3}, 0xffffffffu);
  const auto counts = [&] {
    const auto all = pool.counts(0);
    return std::vector<std::uint32_t>(all.begin(), all.end());
  };
  using Counts = std::vector<std::uint32_t>;
  EXPECT_EQ(pool.first_count(), 0xffffffffu);
  EXPECT_EQ(counts(), Counts(3, 0xffffffffu));
  const Counts posts{1, 2}, more{4, 0, 5};
  pool.leave(0, posts);
  EXPECT_EQ(pool.epoch(), 0x100000000u);
  EXPECT_EQ(counts(), Counts(3, 0xffffffffu));  // the other half
  pool.leave(0, more);
  EXPECT_EQ(counts(), (Counts{0, 1, 0xffffffffu}));  // wrapped
  pool.leave(0, more);
  EXPECT_EQ(counts(), (Counts{3, 0xffffffffu, 4}));
  pool.leave(0, posts);
  EXPECT_EQ(counts(), (Counts{4, 1, 4}));
}

// A is rank + 1 everywhere, B is 1: every element of the sum is depth * (1 + ... + ranks).
struct Sum {
  std::int64_t m;
  std::vector<float> a, b, out;
  Sum(World& world, std::int64_t rows)
      : m(rows),
        a(static_cast<std::size_t>(m * 8), static_cast<float>(world.rank() + 1)),
        b(64, 1.0f),
        out(static_cast<std::size_t>(m * 8)) {}
  bool right(Execution& execution, int ranks) {
    std::fill(out.begin(), out.end(), -1.0f);
    execution.run({a.data(), b.data(), out.data()});
    return out == std::vector<float>(out.size(), static_cast<float>(8 * ranks * (ranks + 1) / 2));
  }
};

// The first byte that the heap would give: whether what was taken has been given back.
std::size_t first_free(World& world) {
  const std::size_t offset = world.heap().allocate(1);
  world.heap().release(offset);
  return offset;
}

// The memory is of a small plan. Larger ones take more, without a word to the other ranks, and all take turns.
TEST(PooledPlans, TakeTurnsInMemoryThatGrows) {
  for (int ranks : {1, 3}) {
    const auto body = [&](World& world) {
      CpuOptions options;
      options.testing = {.delays = 5, .max_delay = 2e-4, .first_epoch = (std::uint64_t{1} << 32) - 3};
      const std::size_t free = first_free(world);
      std::optional<execute::PooledPlans> plans(std::in_place, world, options,
                                                [&](const auto&) { return plan_of(4, ranks); });
      std::vector<std::unique_ptr<Execution>> executions;
      std::vector<Sum> sums;
      for (std::int64_t m : {4, 100, 1, 40}) {
        executions.push_back(plans->prepare(plan_of(m, ranks)));
        sums.emplace_back(world, m);
      }
      for (int i = 0; i < 40; ++i) {
        const auto which = static_cast<std::size_t>(i * i + i / 7) % sums.size();
        EXPECT_TRUE(sums[which].right(*executions[which], ranks)) << "call " << i << ", M = " << sums[which].m;
        if (i == 20) executions[2] = plans->prepare(plan_of(1, ranks));  // again
      }
      executions.clear();
      plans.reset();
      EXPECT_EQ(first_free(world), free);
      return 0;
    };
    EXPECT_EQ(run_threads(ranks, {.heap_bytes = 1 << 22, .wait_limit = 20}, body), 0);
  }
}

// A peer may still be clearing what it gave back.
TEST(PooledPlans, GrowIntoMemoryThatNobodyHad) {
  const auto body = [&](World& world) {
    execute::PooledPlans plans(world, {}, [&](const auto&) { return plan_of(4); });
    const std::size_t given_back = world.heap().allocate(1 << 18);
    world.heap().release(given_back);
    const auto large = plans.prepare(plan_of(256));
    EXPECT_EQ(world.heap().allocate(1 << 18), given_back);
    Sum sum(world, 256);
    EXPECT_TRUE(sum.right(*large, 2));
    return 0;
  };
  EXPECT_EQ(run_threads(2, {.heap_bytes = 1 << 20, .wait_limit = 20}, body), 0);
}

TEST(PooledPlans, SayThatTheHeapIsFull) {
  const auto body = [&](World& world) {
    execute::PooledPlans plans(world, {}, [&](const auto&) { return plan_of(4); });
    const auto small = plans.prepare(plans.first());
    std::string message;
    try {
      static_cast<void>(plans.prepare(plan_of(1 << 14)));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::runtime_failure);
      message = error.what();
    }
    EXPECT_TRUE(message.starts_with("symmetric heap is full: ")) << message;
    Sum sum(world, 4);
    EXPECT_TRUE(sum.right(*small, 2));
    return 0;
  };
  EXPECT_EQ(run_threads(2, {.heap_bytes = 1 << 16, .wait_limit = 20}, body), 0);
}

TEST(PooledPlans, AreForTheWorldsRanks) {
  const auto body = [&](World& world) {
    execute::PooledPlans plans(world, {}, [&](const auto&) { return plan_of(4); });
    EXPECT_THROW(static_cast<void>(plans.prepare(plan_of(4, 3))), Error);
    return 0;
  };
  EXPECT_EQ(run_threads(2, {.heap_bytes = 1 << 20, .wait_limit = 20}, body), 0);
}

}  // namespace
}  // namespace imbrex
