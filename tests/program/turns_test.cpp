// Who is timed when, and what counts.
#include "program/measure/turns.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "support/random_plan.hpp"

namespace imbrex {
namespace {

TEST(Turns, AnotherOneBeginsEachRoundAndTheFirstRoundDoesNotCount) {
  std::vector<std::size_t> order;
  const std::vector<double> times = program::timed_in_turn(3, 2, [&](std::size_t i) {
    order.push_back(i);
    return order.size() <= 3 ? 1000.0 : static_cast<double>(order.size());
  });
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 1, 0, 2, 2, 0, 1}));
  EXPECT_EQ(times, (std::vector<double>{8, 9, 7}));  // of 5 and 8, of 4 and 9, of 6 and 7
  order.clear();
  const program::Sample count = [&](std::size_t i) { return order.push_back(i), static_cast<double>(order.size()); };
  EXPECT_EQ(program::timed_in_turn(3, 1, count, 0, 5), (std::vector<double>{3, 2, 1}));
  EXPECT_EQ(order, (std::vector<std::size_t>{2, 1, 0}));
}

TEST(Turns, ARunOffTimesTheReferencesAndThoseThatCameClose) {
  const std::vector<double> first{5, 20, 10, 10.5, 12}, second{6, 19, 11, 10.4, 0};
  std::vector<std::size_t> counts(5);
  const std::vector<double> times = program::timed_with_run_off(5, 2, 1, [&](std::size_t i) {
    const std::vector<double>& phase = counts[i] < 2 ? first : second;  // two samples a phase: of two rounds
    ++counts[i];
    return phase[i];
  });
  EXPECT_EQ(counts, (std::vector<std::size_t>{6, 6, 6, 6, 2}));
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(times[i], second[i]) << i;
  EXPECT_DOUBLE_EQ(times[4], 12 * 11.0 / 10);  // the fastest at first took a tenth more
}

TEST(Turns, NobodyRunsOffAlone) {
  int samples = 0;
  const std::vector<double> far{1, 1, 10, 11};
  EXPECT_EQ(program::timed_with_run_off(4, 2, 3, [&](std::size_t i) { return ++samples, far[i]; }), far);
  EXPECT_EQ(samples, 16);
  EXPECT_EQ(program::timed_with_run_off(2, 2, 3, [&](std::size_t i) { return far[i]; }), (std::vector<double>{1, 1}));
}

// What the chosen one of candidates that differ by less than their samples do takes more than the best, on
// average.
TEST(Turns, ARunOffChoosesBetter) {
  test::Random random(test::seed_from_environment());
  double regret[2] = {};
  for (int trial = 0; trial < 400; ++trial) {
    std::vector<double> truth{0.5, 1};
    for (int i = 0; i < 10; ++i) truth.push_back(1 + 1e-3 * static_cast<double>(random.between(0, 300)));
    const program::Sample sample = [&](std::size_t i) {
      return truth[i] * (1 + 1e-4 * static_cast<double>(random.between(-500, 500)));
    };
    const double best = *std::min_element(truth.begin() + 2, truth.end());
    for (const bool run_off : {false, true}) {
      const std::vector<double> times = run_off ? program::timed_with_run_off(truth.size(), 2, 4, sample)
                                                : program::timed_in_turn(truth.size(), 4, sample);
      const auto chosen = std::min_element(times.begin() + 2, times.end()) - times.begin();
      regret[run_off] += truth[static_cast<std::size_t>(chosen)] / best - 1;
    }
  }
  EXPECT_LT(regret[1], 0.8 * regret[0]);
}

}  // namespace
}  // namespace imbrex
