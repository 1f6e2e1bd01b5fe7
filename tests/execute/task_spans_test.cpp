// Spans of a timeline from what kernels wrote down, without a GPU.
#include "execute/cuda/times/task_spans.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "execute/cuda/tables/translate.hpp"
#include "execute/layout.hpp"

namespace imbrex::cuda {
namespace {

struct Epoch {
  Plan plan;
  RankTable table;
  std::vector<TaskTimes> times;

  /// An epoch of rank 1 of two, whose tiles run in pairs; task i takes up 10 us from 100 i us on.
  Epoch() {
    Knobs knobs;
    knobs.transport = Transport::store;
    plan = make_plan({Operator::gemm_reduce_scatter, 640, 512, 256, 2, Type::bf16}, Strategy::fused, knobs);
    const HeapHandle heap{reinterpret_cast<std::byte*>(std::uintptr_t{1} << 40), std::size_t{1} << 32, 1};
    table = translate(plan, execute::HeapLayout(plan), 1, heap, 4096, {128, 128, 2, true});
    for (std::size_t i = 0; i < table.tasks.size(); ++i) {
      TaskTimes t{};
      t.begin = 100'000 * (i + 1);
      t.multiplied = t.begin + 8'000;
      t.end = t.begin + 10'000;
      t.sm = static_cast<std::uint32_t>(i % 7);
      times.push_back(t);
    }
  }

  std::vector<Span> spans(double to_host = 0) const { return task_spans(plan, 1, table.tasks, times, to_host); }
};

std::size_t count(const std::vector<Span>& spans, Span::Kind kind) {
  return static_cast<std::size_t>(
      std::count_if(spans.begin(), spans.end(), [&](const Span& s) { return s.kind == kind; }));
}

TEST(TaskSpans, EveryTaskOfThePlanHasItsSpans) {
  const Epoch epoch;
  std::map<std::string, int> named;
  std::size_t tiles = 0;
  for (const Queue& queue : epoch.plan.ranks[1].queues)
    for (const Task& task : queue.tasks) {
      const bool tile = std::holds_alternative<Tile>(task.work);
      tiles += tile;
      ++named[label(task)];
      if (tile) ++named["store " + label(task)];
    }
  ASSERT_GT(epoch.table.peer_ctas, 0u) << "tiles without a mate";
  const std::vector<Span> spans = epoch.spans();
  EXPECT_EQ(count(spans, Span::Kind::compute), tiles);
  for (const Span& span : spans) {
    EXPECT_EQ(span.rank, 1);
    EXPECT_LT(span.begin, span.end);
    --named[span.name];
  }
  for (const auto& [name, left] : named) EXPECT_EQ(left, 0) << name;
}

TEST(TaskSpans, TimesAreSecondsOfTheHost) {
  Epoch epoch;
  const std::vector<Span> spans = epoch.spans(1000);
  const auto first =
      std::min_element(spans.begin(), spans.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  EXPECT_NEAR(first->begin, 1000 + 100e-6, 1e-9);
  EXPECT_NEAR(first->end - first->begin, 8e-6, 1e-9);
}

TEST(TaskSpans, WaitsAreShownWhereTheyTookTime) {
  Epoch epoch;
  const auto tile = static_cast<std::size_t>(std::find_if(epoch.table.tasks.begin(), epoch.table.tasks.end(),
                                                          [](const TaskEntry& t) { return t.kind == TaskKind::tile; }) -
                                             epoch.table.tasks.begin());
  TaskTimes& t = epoch.times[tile];
  t.sm = 42;
  t.group = 1;
  t.add_wait = t.begin, t.add_met = t.begin + 499;  // it was there
  EXPECT_EQ(count(epoch.spans(), Span::Kind::wait), 0u);
  t.add_met = t.begin + 3000;
  t.load_wait = t.begin - 2000, t.load_met = t.begin;
  const std::vector<Span> spans = epoch.spans();
  ASSERT_EQ(count(spans, Span::Kind::wait), 2u);
  for (const Span& span : spans) {
    if (span.kind == Span::Kind::wait) {
      EXPECT_EQ(span.row, "loads 42");
      EXPECT_TRUE(span.name.starts_with("wait: tile rows ")) << span.name;
    } else if (span.row.find("42") != std::string::npos) {
      EXPECT_EQ(span.row, span.kind == Span::Kind::compute ? "sm 42" : "stores 42 group 1");
    }
  }
}

TEST(TaskSpans, WhatWasGivenUpHasNone) {
  Epoch epoch;
  const std::size_t all = epoch.spans().size();
  for (TaskTimes& t : epoch.times) t.end = 0;
  EXPECT_EQ(epoch.spans().size(), all / 2) << "products, no stores";
  for (TaskTimes& t : epoch.times) t = {};
  EXPECT_TRUE(epoch.spans().empty());
}

}  // namespace
}  // namespace imbrex::cuda
