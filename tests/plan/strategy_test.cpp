// The strategies make sound plans, whatever the problem and the knobs.
#include <gtest/gtest.h>

#include "imbrex/error.hpp"
#include "plan/rank_plan.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

// By signal of `rank`: how many posts it receives, and how many of them from tasks before which their queue waits.
std::vector<std::pair<int, int>> posts_to(const Plan& plan, int rank) {
  std::vector<std::pair<int, int>> posts(static_cast<std::size_t>(plan.ranks[static_cast<std::size_t>(rank)].signals));
  for (const RankPlan& from : plan.ranks)
    for (const Queue& queue : from.queues) {
      bool waited = false;
      for (const Task& task : queue.tasks) {
        waited = waited || !task.waits.empty();
        for (const Post& post : task.posts)
          if (post.rank == rank) {
            auto& [all, late] = posts[static_cast<std::size_t>(post.signal)];
            ++all;
            late += waited;
          }
      }
    }
  return posts;
}

TEST(Strategies, CheckerAcceptsEveryPlan) {
  test::Random random(test::seed_from_environment());
  std::size_t tasks = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto c = test::random_case(
        random, {.max_ranks = i % 50 == 0 ? 64 : 8, .max_size = 700, .bias = true, .e4m3 = true, .lists = true});
    SCOPED_TRACE(test::describe(c));
    const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
    tasks += count_tasks(plan);
    const auto finding = check(plan);
    ASSERT_FALSE(finding.has_value()) << name_of(finding->fault) << ": " << finding->message;
    if (i % 10 == 0) {
      ASSERT_TRUE(parse_plan(to_json(plan)) == plan);
    }
  }
  RecordProperty("tasks", static_cast<int>(tasks));
}

TEST(Strategies, OneRanksPlanIsThatRanksPart) {
  test::Random random(test::seed_from_environment());
  for (int i = 0; i < 300; ++i) {
    auto c = test::random_case(random, {.max_ranks = 8, .max_size = 700, .e4m3 = true, .lists = true});
    SCOPED_TRACE(test::describe(c));
    const Plan whole = make_plan(c.problem, c.strategy, c.knobs);
    const int rank = static_cast<int>(random.between(0, c.problem.ranks - 1));
    Plan one = plan::make_rank_plan(c.problem, c.strategy, c.knobs, rank);
    const auto finding = check_format(one);
    ASSERT_FALSE(finding.has_value()) << finding->message;
    ASSERT_EQ(posts_to(one, rank), posts_to(whole, rank));
    // Without the other ranks' tasks, the two are equal.
    Plan rest = whole;
    for (int r = 0; r < c.problem.ranks; ++r)
      for (std::size_t q = 0; r != rank && q < rest.ranks[static_cast<std::size_t>(r)].queues.size(); ++q) {
        auto& kept = one.ranks[static_cast<std::size_t>(r)].queues[q].tasks;
        if (one.problem.m >= c.problem.ranks * c.knobs.tile_m && c.strategy == Strategy::fused) {
          ASSERT_LE(kept.size(), 2u);
        }
        kept.clear();
        rest.ranks[static_cast<std::size_t>(r)].queues[q].tasks.clear();
      }
    ASSERT_TRUE(one == rest);
  }
  EXPECT_THROW(plan::make_rank_plan({Operator::gemm_all_reduce, 64, 64, 64, 2, Type::bf16}, Strategy::fused, {}, 2),
               Error);
}

}  // namespace
}  // namespace imbrex
