// The checker refuses what is wrong, naming fault and task.
#include <gtest/gtest.h>

#include <chrono>

#include "imbrex/plan.hpp"

namespace imbrex {
namespace {

TEST(Checker, LargePlanTakesLessThanASecond) {
  // 100,000 tasks: the scale at which a plan is still read by people's tools.
  Knobs knobs;
  knobs.tile_m = knobs.tile_n = 128;
  knobs.transport = Transport::store;
  const Plan plan = make_plan({Operator::gemm_reduce_scatter, 16384, 28672, 8192, 4, Type::bf16}, Strategy::fused, knobs);
  ASSERT_GE(count_tasks(plan), 100000u);
  const auto begin = std::chrono::steady_clock::now();
  const auto finding = check(plan);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  EXPECT_FALSE(finding.has_value()) << finding->message;
  std::cout << count_tasks(plan) << " tasks checked in " << seconds << " s\n";
}

}  // namespace
}  // namespace imbrex
