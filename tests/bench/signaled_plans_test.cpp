// The plans that the benchmarks of signaled plans time: sound, and such as the CUDA executor runs.
#include <gtest/gtest.h>

#include <numeric>

#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/refusal.hpp"
#include "signaled/plans.hpp"

namespace imbrex {
namespace {

bench::SignaledProduct product_of(std::int64_t m, std::int64_t n) {
  Knobs knobs{.tile_m = 128, .tile_n = 256};
  knobs.packed = true;
  knobs.kept_free = 16;
  return {{Operator::gemm_all_reduce, m, n, 512, 1, Type::bf16}, knobs, 16};
}

TEST(SignaledBench, WavesCoverTheTiles) {
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(bench::tiles_of_waves({1, 2, 1}, 116, 400), (Sizes{116, 232, 52}));
  EXPECT_EQ(bench::tiles_of_waves({1}, 116, 100), (Sizes{100}));
}

TEST(SignaledBench, PlansAreSound) {
  for (const std::int64_t m : {1024, 1536, 3000})
    for (const std::vector<std::int64_t>& waves : {std::vector<std::int64_t>{1, 1}, {2}}) {
      const bench::SignaledProduct product = product_of(m, 4096);
      const std::int64_t workers = (product.tiles() + 1) / 2;
      const std::vector<std::int64_t> tiles = bench::tiles_of_waves(waves, workers, product.tiles());
      ASSERT_EQ(std::accumulate(tiles.begin(), tiles.end(), std::int64_t{0}), product.tiles());
      const Plan plan = bench::with_collectives(product, tiles);
      const auto finding = check(plan);
      EXPECT_FALSE(finding.has_value()) << finding->message;
      EXPECT_EQ(cuda::refusal_of_plan(plan), "");
      const cuda::LanePlan lanes = cuda::lane_plan(plan, 0);
      EXPECT_EQ(lanes.kept_free, 16);
      EXPECT_FALSE(lanes.behind);
      EXPECT_EQ(lanes.program.steps.size(), waves.size());
      for (const Plan& other : {bench::alone(product), bench::with_signals(product, tiles)}) {
        EXPECT_FALSE(check_format(other).has_value());
        EXPECT_EQ(cuda::refusal_of_plan(other), "");
        EXPECT_FALSE(cuda::runs_in_lanes(other));
      }
    }
}

}  // namespace
}  // namespace imbrex
