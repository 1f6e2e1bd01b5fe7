// The groups of signaled plans: the recurrence, the search, and what the simulator says of what it finds.
#include "choose/signaled_times.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <numeric>

#include "choose/choose.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using choose::GroupCosts, choose::GroupTime;

// Waves of random lengths, and a collective with a latency and a bandwidth that suffers in pieces.
GroupCosts random_costs(test::Random& random, std::int64_t units) {
  GroupCosts costs;
  double now = 0;
  for (std::int64_t u = 0; u < units; ++u)
    costs.computed.push_back(now += random.chance(0.2) ? 0 : static_cast<double>(random.between(1, 100)));
  const auto fixed = static_cast<double>(random.between(0, 60)), each = static_cast<double>(random.between(1, 100)),
             last = static_cast<double>(random.between(0, 50));
  costs.collective = [=](std::int64_t, std::int64_t count) { return fixed + each * static_cast<double>(count); };
  costs.behind = [=](std::int64_t, std::int64_t count) { return last * static_cast<double>(count); };
  if (random.chance(0.5)) costs.least = now + last * static_cast<double>(units);
  return costs;
}

TEST(SignaledTimes, TheRecurrenceOfAKnownCase) {
  GroupCosts costs;
  costs.computed = {10, 20, 30, 40};
  costs.collective = [](std::int64_t, std::int64_t count) { return 5 + 8.0 * static_cast<double>(count); };
  costs.behind = [](std::int64_t, std::int64_t count) { return static_cast<double>(count); };
  const std::vector<GroupTime> times = choose::group_times(costs, {1, 2, 1});
  ASSERT_EQ(times.size(), 3u);
  EXPECT_EQ(times[0].begins, 10);
  EXPECT_EQ(times[0].ends, 23);
  EXPECT_EQ(times[1].computed, 30);
  EXPECT_EQ(times[1].begins, 30);  // waits for its tiles
  EXPECT_EQ(times[1].ends, 51);
  EXPECT_EQ(times[2].computed, 40);
  EXPECT_EQ(times[2].begins, 51);  // waits for the collective before
  EXPECT_EQ(times[2].ends, 64);
  EXPECT_EQ(choose::seconds_of_groups(costs, {1, 2, 1}), 65);
  costs.least = 64;
  EXPECT_EQ(choose::seconds_of_groups(costs, {1, 2, 1}), 65);
  costs.least = 66;  // the product, and all that is put back
  EXPECT_EQ(choose::seconds_of_groups(costs, {1, 2, 1}), 66);
}

TEST(SignaledTimes, TheSearchFindsTheBestOfAllPartitions) {
  test::Random random(test::seed_from_environment());
  int several = 0;
  for (int i = 0; i < 300; ++i) {
    const std::int64_t units = random.between(1, 12);
    const int most = static_cast<int>(random.one_of({1, 2, 5, 16}));
    const GroupCosts costs = random_costs(random, units);
    const auto best = choose::best_groups(costs, most), all = choose::best_groups_of_all(costs, most);
    EXPECT_EQ(std::accumulate(best.begin(), best.end(), std::int64_t{0}), units);
    EXPECT_LE(std::ssize(best), most);
    EXPECT_DOUBLE_EQ(choose::seconds_of_groups(costs, best), choose::seconds_of_groups(costs, all));
    several += best.size() > 1;
  }
  EXPECT_GT(several, 100);
}

TEST(SignaledTimes, RefuseGroupsThatDoNotCoverTheProduct) {
  const Problem problem{Operator::gemm_reduce_scatter, 1024, 1024, 1024, 4, Type::bf16};
  Knobs knobs;
  knobs.groups = {1, 2};
  for (const auto& f :
       {+[](const Problem&p, const Knobs&k) { make_plan(p, Strategy::signaled, k); },
        +[](const Problem&p, const Knobs&k) { choose::signaled_times(p, k, load_machine("4xh200")); }}) {
    try {
      f(problem, knobs);
      FAIL() << "not refused";
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), "knob groups = 1, 2: the groups have 3 rows of tiles, and there are 2");
    }
  }
}

// The analytical cost model is near the simulator, and the groups that it chooses are near the best of some others,
// simulated.
TEST(SignaledTimes, AgreeWithTheSimulator) {
  double sum = 0, worst = 0, lost = 0;
  int count = 0;
  for (const char* name : {"4xh200", "rtx4090-4", "a100-nvlink-8"}) {
    const Machine machine = load_machine(name);
    const auto simulator = make_simulator(machine);
    const auto simulated = [&](const Problem& p, const Knobs& k) {
      return simulator->prepare(std::make_shared<const Plan>(make_plan(p, Strategy::signaled, k)))->run({}).seconds;
    };
    for (const Operator op : {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                              Operator::gemm_all_to_all})
      for (const std::int64_t m : {2048, 8192}) {
        const Problem problem{op, m, 8192, op == Operator::gemm_all_to_all ? 2048 : 8192, 4, Type::bf16};
        for (const plan::Candidate& c : choose::candidates(problem, machine, Strategy::signaled)) {
          const double expected = choose::signaled_times(problem, c.knobs, machine).seconds,
                       seconds = simulated(problem, c.knobs), error = std::abs(expected / seconds - 1);
          sum += error;
          worst = std::max(worst, error);
          Knobs equal = c.knobs;
          equal.groups = {};
          double best = seconds;
          for (equal.chunks = 1; equal.chunks <= 4; ++equal.chunks) best = std::min(best, simulated(problem, equal));
          lost = std::max(lost, seconds / best - 1);
          ++count;
        }
      }
  }
  std::cout << count << " plans: the analytical cost model is off by " << 100 * sum / count
            << " % in the mean, at most " << 100 * worst << " %; its groups lose at most " << 100 * lost
            << " % against equal ones\n";
  EXPECT_LT(sum / count, 0.06);
  EXPECT_LT(lost, 0.03);
}

// Each group's scales of rows are gathered before it, which the analytical cost model counts.
TEST(SignaledTimes, CountScalesOfRows) {
  const Machine machine = load_machine("4xh200");
  const auto simulator = make_simulator(machine);
  const Knobs knobs{.tile_m = 128, .tile_n = 128, .groups = {1, 1, 1, 1}, .kept_free = 16};
  double expected[2] = {}, simulated[2] = {};
  for (const bool scaled : {false, true}) {
    const Problem problem{.op = Operator::all_gather_gemm,
                          .m = 2048,
                          .n = 8192,
                          .k = 1024,
                          .ranks = 4,
                          .type = Type::e4m3,
                          .scales = scaled ? Scales::row : Scales::none};
    expected[scaled] = choose::signaled_times(problem, knobs, machine).seconds;
    simulated[scaled] = simulator->prepare(std::make_shared<const Plan>(make_plan(problem, Strategy::signaled, knobs)))
                            ->run({})
                            .seconds;
  }
  EXPECT_GT(simulated[1], simulated[0]);
  EXPECT_NEAR(expected[1] - expected[0], simulated[1] - simulated[0], 0.3 * (simulated[1] - simulated[0]));
}

}  // namespace
}  // namespace imbrex
