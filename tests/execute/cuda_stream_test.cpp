// Tables from tasks that come one by one.
#include <gtest/gtest.h>

#include <tuple>
#include <utility>
#include <vector>

#include "cuda_tables.hpp"
#include "plan/rank_plan.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using namespace imbrex::cuda;
using test::plan_of;
using test::same_bytes;
using test::scatter_knobs;
using test::table_or_refusal;

// Made as the executor makes them: tasks one by one, in memory that other tables have left.
TEST(CudaStream, IsTheSameFromTasksOneByOne) {
  test::Random random(test::seed_from_environment());
  int tables = 0, copies = 0;
  TableEntries memory;
  for (int i = 0; i < 300; ++i) {
    auto c = test::random_case(random, {.max_ranks = 8, .max_size = 700, .bias = true, .e4m3 = true});
    c.strategy = Strategy::fused;
    c.knobs = test::random_knobs(random, c.problem, c.strategy);
    SCOPED_TRACE(test::describe(c));
    const int rank = static_cast<int>(random.between(0, c.problem.ranks - 1));
    const Plan stored = plan::make_rank_plan(c.problem, c.strategy, c.knobs, rank);
    const auto tasks = plan::make_rank_tasks(c.problem, c.strategy, c.knobs, rank);
    const Surveyed surveyed = survey(*tasks, rank);
    EXPECT_EQ(surveyed.layout.bytes(), execute::HeapLayout(stored).bytes());
    EXPECT_EQ(surveyed.tables.largest_tile(), largest_tile(stored));
    EXPECT_EQ(surveyed.tables.refusal_of_tma(), refusal_of_tma(stored));
    const TileShape shape{128, 128, static_cast<int>(random.between(1, 2)), false};
    RankTable x, y;
    const std::string why = table_or_refusal(stored, rank, shape, x);
    const auto made = [&] {
      return translate(*tasks, surveyed.tables, surveyed.layout, rank, test::pretend_heap(rank), 4096, shape,
                       std::exchange(memory, {}));
    };
    if (!why.empty()) {
      // Which of the tasks that it does not run they name, depends on whose come first.
      EXPECT_THROW(made(), Error) << why;
      continue;
    }
    y = made();
    ASSERT_TRUE(same_bytes(x.tasks, y.tasks) && same_bytes(x.waits, y.waits) && same_bytes(x.regions, y.regions) &&
                same_bytes(x.posts, y.posts) && same_bytes(x.queues, y.queues));
    ASSERT_EQ(x.copies.size(), y.copies.size());
    for (std::size_t j = 0; j < x.copies.size(); ++j) {
      const CopyStep &a = x.copies[j], &b = y.copies[j];
      ASSERT_TRUE(same_bytes(std::vector{a.from, a.to}, std::vector{b.from, b.to}));
      ASSERT_EQ(std::tuple(a.local, a.flag, a.counter, a.queue, a.task),
                std::tuple(b.local, b.flag, b.counter, b.queue, b.task));
      ++copies;
    }
    ASSERT_EQ(x.gathered, y.gathered);
    ASSERT_EQ(x.gathered_scales, y.gathered_scales);
    ASSERT_EQ(x.peer_ctas, y.peer_ctas);
    memory = std::move(y);
    tables += !x.tasks.empty();
  }
  EXPECT_GT(tables, 100);
  EXPECT_GT(copies, 20);
}

TEST(CudaStream, SurveyRefusesWhatCheckFormatRefuses) {
  const auto refused = [](const Plan& plan) {
    try {
      survey(*plan::stored_tasks(std::make_shared<const Plan>(plan)), 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_input);
      return std::string(error.what());
    }
    return std::string();
  };
  Plan plan = plan_of(Operator::gemm_reduce_scatter, scatter_knobs());
  EXPECT_EQ(refused(plan), "");
  plan.ranks[1].queues[0].tasks[2].posts.push_back({3, 1 << 20});
  const auto finding = check_format(plan);
  ASSERT_TRUE(finding.has_value());
  EXPECT_EQ(refused(plan), "malformed: " + finding->message);
  EXPECT_NE(refused(plan).find("rank 1 queue 0 task 2 (tile): posts to signal 1048576"), std::string::npos);
}

// Tasks of one queue lie together in the tables.
TEST(CudaStream, RefusesQueuesThatTakeTurns) {
  class TakingTurns final : public plan::TaskStream {
   public:
    explicit TakingTurns(const Plan& plan) : plan_(plan) {}
    const Plan& frame() const override { return plan_; }
    void for_each(const plan::TaskVisit& visit) override {
      const auto& queues = plan_.ranks[0].queues;
      visit({0, 0, 0}, queues[0].tasks[0]);
      visit({0, 1, 0}, queues[1].tasks[0]);
      visit({0, 0, 1}, queues[0].tasks[1]);
    }
    std::shared_ptr<const Plan> whole() const override { return nullptr; }

   private:
    Plan plan_;
  };
  Knobs knobs = scatter_knobs();
  knobs.reducer = Reducer::reserved;
  TakingTurns tasks(plan_of(Operator::gemm_reduce_scatter, knobs));
  const Surveyed surveyed = survey(tasks, 0);
  try {
    translate(tasks, surveyed.tables, surveyed.layout, 0, test::pretend_heap(0), 4096, {128, 128, 1, true}, {});
    FAIL() << "two queues took turns";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("comes after tasks of queue 1"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace imbrex
