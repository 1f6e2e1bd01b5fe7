// The strategies make sound plans, whatever the problem and the knobs.
#include <gtest/gtest.h>

#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

TEST(Strategies, CheckerAcceptsEveryPlan) {
  test::Random random(test::seed_from_environment());
  std::size_t tasks = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto c = test::random_case(random, {.max_ranks = i % 50 == 0 ? 64 : 8, .max_size = 700, .bias = true});
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

}  // namespace
}  // namespace imbrex
