// Tasks that come one by one are those of the plan.
#include "plan/task_stream.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <stdexcept>

#include "imbrex/error.hpp"
#include "plan/check/format.hpp"
#include "plan/rank_plan.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

// What a stream has brought.
struct Brought {
  std::vector<std::vector<Task>> own;  // by queue: tasks of the rank that it is for
  // Posts of the other ranks, by rank, queue, and whether a task of the queue has waited.
  std::map<std::tuple<int, int, bool>, std::vector<Post>> posts;
  std::vector<int> compute_queues;  // of own tasks, as they came

  bool operator==(const Brought&) const = default;
};

class Collector {
 public:
  Collector(const Plan& frame, int rank) : frame_(frame), rank_(rank) {
    brought.own.resize(frame.ranks[static_cast<std::size_t>(rank)].queues.size());
  }

  void add(const plan::TaskPlace& place, const Task& task) {
    const auto queue = static_cast<std::size_t>(place.queue);
    const std::pair<int, int> source{place.rank, place.queue};
    ASSERT_EQ(place.index, count_[source]++);
    if (place.rank == rank_) {
      brought.own[queue].push_back(task);
      if (frame_.ranks.front().queues[queue].engine == Engine::compute) brought.compute_queues.push_back(place.queue);
      return;
    }
    waited_[source] |= !task.waits.empty();
    for (const Post& post : task.posts)
      if (post.rank == rank_) brought.posts[{place.rank, place.queue, waited_[source]}].push_back(post);
  }

  Brought brought;

 private:
  const Plan& frame_;
  int rank_;
  std::map<std::pair<int, int>, std::size_t> count_;
  std::map<std::pair<int, int>, bool> waited_;
};

Brought bring(plan::TaskStream& tasks, int rank) {
  Collector collector(tasks.frame(), rank);
  tasks.for_each([&](const plan::TaskPlace& place, const Task& task) { collector.add(place, task); });
  return collector.brought;
}

Plan without_tasks(Plan plan) {
  for (RankPlan& rank : plan.ranks)
    for (Queue& queue : rank.queues) queue.tasks.clear();
  return plan;
}

TEST(TaskStream, BringsTheRanksPlanAnyNumberOfTimes) {
  test::Random random(test::seed_from_environment());
  int made = 0;
  for (int i = 0; i < 300; ++i) {
    auto c = test::random_case(random, {.max_ranks = 8, .max_size = 700, .bias = true, .e4m3 = true, .lists = true});
    if (i % 2 == 0) c = {c.problem, Strategy::fused, test::random_knobs(random, c.problem, Strategy::fused)};
    SCOPED_TRACE(test::describe(c));
    const int rank = static_cast<int>(random.between(0, c.problem.ranks - 1));
    const auto plan = std::make_shared<const Plan>(plan::make_rank_plan(c.problem, c.strategy, c.knobs, rank));
    const Brought stored = bring(*plan::stored_tasks(plan), rank);
    const auto tasks = plan::make_rank_tasks(c.problem, c.strategy, c.knobs, rank);
    ASSERT_TRUE(without_tasks(tasks->frame()) == without_tasks(*plan));
    made += count_tasks(tasks->frame()) == 0 && !stored.compute_queues.empty();
    for (int time = 0; time < 2; ++time) {
      const Brought brought = bring(*tasks, rank);
      ASSERT_TRUE(brought == stored);
      ASSERT_TRUE(std::is_sorted(brought.compute_queues.begin(), brought.compute_queues.end()));
    }
    ASSERT_TRUE(*tasks->whole() == *plan);
  }
  EXPECT_GT(made, 100);
}

// Executors do not check the format of tasks that a strategy makes for them: here it is checked.
TEST(TaskStream, MadeTasksKeepTheFormatsRules) {
  test::Random random(test::seed_from_environment());
  int made = 0;
  for (int i = 0; i < 500; ++i) {
    auto c = test::random_case(random, {.max_ranks = 8, .max_size = 700, .bias = true, .e4m3 = true, .lists = true});
    c = {c.problem, Strategy::fused, test::random_knobs(random, c.problem, Strategy::fused)};
    SCOPED_TRACE(test::describe(c));
    const auto tasks =
        plan::make_rank_tasks(c.problem, c.strategy, c.knobs, static_cast<int>(random.between(0, c.problem.ranks - 1)));
    plan::FormatCheck format(tasks->frame());
    ASSERT_NO_THROW({
      tasks->for_each([&](const plan::TaskPlace& place, const Task& task) { format.add(place, task); });
      format.finish();
    });
    made += tasks->made();
  }
  EXPECT_GT(made, 300);
}

// A visitor that refuses a task leaves nothing behind for the next one.
TEST(TaskStream, BeginsAnewAfterAVisitThatThrew) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 50; ++i) {
    auto c = test::random_case(random, {.max_ranks = 4, .max_size = 300});
    c = {c.problem, Strategy::fused, test::random_knobs(random, c.problem, Strategy::fused)};
    SCOPED_TRACE(test::describe(c));
    const auto tasks = plan::make_rank_tasks(c.problem, c.strategy, c.knobs, 0);
    std::int64_t count = 0;
    tasks->for_each([&](const plan::TaskPlace&, const Task&) { ++count; });
    const Brought before = bring(*tasks, 0);
    std::int64_t left = random.between(1, count);
    const auto refuse = [&](const plan::TaskPlace&, const Task&) {
      if (--left == 0) throw std::runtime_error("refused");
    };
    ASSERT_THROW(tasks->for_each(refuse), std::runtime_error);
    ASSERT_TRUE(bring(*tasks, 0) == before);
  }
}

TEST(TaskStream, RefusesWhatMakePlanRefuses) {
  const Problem problem{Operator::gemm_all_reduce, 64, 64, 64, 2, Type::bf16};
  Knobs knobs;
  knobs.tile_m = 0;
  EXPECT_THROW(plan::make_rank_tasks(problem, Strategy::fused, knobs, 0), Error);
  EXPECT_THROW(plan::make_rank_tasks(problem, Strategy::fused, {}, 2), Error);
  EXPECT_THROW(plan::make_rank_tasks({Operator::gemm_all_reduce, 64, 64, 63, 2, Type::bf16}, Strategy::fused, {}, 0),
               Error);
}

}  // namespace
}  // namespace imbrex
