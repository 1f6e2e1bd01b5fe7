// What a solution that is not finite says of the system, and of the solver.
#include <gtest/gtest.h>

#include <limits>

#include "apps/sparse/residual.hpp"

namespace imbrex::apps::sparse {
namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

// 1 0 0 | 1 1e-300 0 | 1 1 2
Triangular system() {
  Triangular t;
  t.rows = 3;
  t.begin = {0, 0, 1, 3};
  t.column = {0, 0, 1};
  t.value = {1, 1, 1};
  t.diagonal = {1, 1e-300, 2};
  return t;
}

TEST(Residual, ASolutionBeyondTheTypeOverflows) {
  const Residual residual = worst_residual<double>(system(), {1, 1e10, 1}, {1, inf, -inf}, 1);
  EXPECT_TRUE(residual.overflows);
  EXPECT_EQ(residual.row, 1);
  EXPECT_EQ(residual.value, inf);
}

TEST(Residual, AnInfinityThatFitsTheTypeIsWrong) {
  for (const double wrong : {inf, -inf, std::numeric_limits<double>::quiet_NaN()}) {
    const Residual residual = worst_residual<double>(system(), {1, 1, 1}, {1, 0, wrong}, 1);
    EXPECT_FALSE(residual.overflows);
    EXPECT_EQ(residual.over_bound, inf);
    EXPECT_EQ(residual.row, 2);
  }
}

// Whatever overflows, a wrong row counts.
TEST(Residual, WhatIsWrongHidesBehindNoOverflow) {
  const Residual residual = worst_residual<double>(system(), {1, 1e10, 1}, {1, inf, 3}, 1);
  EXPECT_FALSE(residual.overflows);
  EXPECT_EQ(residual.row, 2);
  EXPECT_GT(residual.over_bound, 1);
}

}  // namespace
}  // namespace imbrex::apps::sparse
