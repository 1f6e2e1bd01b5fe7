// Jacobi's parts: first values, the serial solution, and how fields are cut into tiles.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "apps/jacobi/serial.hpp"
#include "apps/jacobi/solver.hpp"

namespace imbrex::apps::jacobi {
namespace {

TEST(Jacobi, FirstValuesStayInTheRangeThatMakesSumsExact) {
  std::set<double> seen;
  for (std::int64_t row = -1; row < 60; ++row)
    for (std::int64_t column = -1; column < 60; ++column) {
      const auto value = first_value<double>(7, row, column);
      EXPECT_EQ(value, static_cast<double>(first_value<float>(7, row, column)));
      EXPECT_TRUE(value >= 0.25 && value <= 1 && std::trunc(value * 0x1p24) == value * 0x1p24) << value;
      seen.insert(value);
    }
  EXPECT_GT(seen.size(), 3500u);
  EXPECT_NE(first_value<double>(1, 3, 4), first_value<double>(2, 3, 4));
}

// Two elements, by hand.
template <typename T>
void expect_by_hand() {
  const auto first = [](std::int64_t row, std::int64_t column) { return first_value<T>(5, row, column); };
  const auto mean = [](T above, T below, T left, T right) { return ((above + below) + (left + right)) / 4; };
  const auto once = [&](T x, T y) {
    return std::pair{mean(first(-1, 0), first(1, 0), first(0, -1), y), mean(first(-1, 1), first(1, 1), x, first(0, 2))};
  };
  const auto [x, y] = once(first(0, 0), first(0, 1));
  const auto [x2, y2] = once(x, y);
  const Solution<T> solution = solve_serially<T>(1, 2, 5, 2, 1);
  EXPECT_EQ(solution.at(0, 0), x2);
  EXPECT_EQ(solution.at(0, 1), y2);
  ASSERT_EQ(solution.residuals.size(), 2u);
  EXPECT_EQ(rounded(solution.residuals[0]),
            std::abs(static_cast<double>(x - first(0, 0))) + std::abs(static_cast<double>(y - first(0, 1))));
  EXPECT_EQ(rounded(solution.residuals[1]),
            std::abs(static_cast<double>(x2 - x)) + std::abs(static_cast<double>(y2 - y)));
  EXPECT_EQ(solution.at(-1, 1), first(-1, 1));
}

TEST(Jacobi, TheSerialSolutionIsTheOneByHand) {
  expect_by_hand<float>();
  expect_by_hand<double>();
}

TEST(Jacobi, TilesCoverTheFieldAndHaveAThreadAPatch) {
  for (const auto& [rows, columns] :
       {std::pair{1u, 1u}, {1u, 500u}, {7u, 3u}, {37u, 53u}, {100u, 1000u}, {256u, 256u}, {301u, 77u}})
    for (const std::uint32_t blocks : {1u, 2u, 5u, 33u, 132u}) {
      const auto tiling = cut(field_of<float>(rows, columns, 1, 1, 0), blocks, 512, 9, 8);
      if (!tiling) continue;
      const Tiling& t = *tiling;
      EXPECT_LE(t.down * t.across, blocks);
      EXPECT_LE(t.threads(), 512u);
      EXPECT_TRUE((t.down - 1) * t.rows < rows && t.down * t.rows >= rows);
      EXPECT_TRUE((t.across - 1) * t.columns < columns && t.across * t.columns >= columns);
      EXPECT_TRUE(t.patches_down * 9 >= t.rows + 2 && t.patches_across * 8 >= t.columns + 2);
      EXPECT_TRUE(t.box >= t.rows && t.box >= t.columns);
    }
}

TEST(Jacobi, AQuarterOfAnH100HoldsWhatIsPromised) {
  const auto fits = [](std::uint32_t size, std::uint32_t rows, std::uint32_t columns) {
    return cut(field_of<float>(size, size, 2, 2, 0), 33, 512, rows, columns).has_value();
  };
  EXPECT_TRUE(fits(512, 5, 4));
  EXPECT_TRUE(fits(1024, 9, 8));
  EXPECT_FALSE(fits(1024, 5, 4));
  EXPECT_FALSE(fits(2048, 9, 8));
}

}  // namespace
}  // namespace imbrex::apps::jacobi
