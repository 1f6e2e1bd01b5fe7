// The kernel that all ranks choose alike, each for itself and without tables: by rank 0's tiles.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

#include "execute/cuda/products/kernel_choice.hpp"
#include "execute/cuda_tables.hpp"
#include "support/kernel_list.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using cuda::TileCounts;

const test::KernelList& kernels() {
  static const test::KernelList list = test::read_kernel_list(KERNEL_LIST);
  return list;
}

std::unique_ptr<plan::TaskStream> tasks_of(const test::RandomCase& c, int rank) {
  return plan::make_rank_tasks(c.problem, c.strategy, c.knobs, rank);
}

// Sizes that the kernels on tensor cores take, often enough, and some that do not divide by the ranks or the tiles.
test::RandomCase random_case(test::Random& random) {
  test::RandomCase c;
  Problem& p = c.problem;
  p.op = random.one_of(
      {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all});
  test::set_type(random, p, random.one_of({Type::bf16, Type::bf16, Type::fp16, Type::e4m3}));
  p.ranks = static_cast<int>(random.one_of({1, 2, 3, 4, 8}));
  const std::int64_t step = random.chance(0.8) ? 16 : 1;
  test::draw_sizes(
      p,
      [&](const auto* size) {
        return (size == &p.m ? 1 : step) * p.ranks * random.between(1, size == &p.m ? 400 : 30);
      },
      [&](const auto* size) { return size == &p.m ? random.between(1, 1500) : step * random.between(1, 60); });
  p.bias = random.chance(0.3);
  c.strategy = random.chance(0.8) ? Strategy::fused : Strategy::signaled;
  c.knobs = test::random_knobs(random, p, c.strategy);
  c.knobs.tile_m = random.one_of<std::int64_t>({64, 128});
  c.knobs.tile_n = random.one_of<std::int64_t>({32, 64, 128, 256});
  if (c.strategy == Strategy::signaled) test::set_groups(random, p, c.knobs);
  return c;
}

// What choose_kernel was told of a table: it must know the same without one.
void expect_as_in_tables(plan::TaskStream& tasks, const cuda::Surveyed& surveyed, int rank) {
  const cuda::TableSurvey& survey = surveyed.tables;
  for (const test::ListedKernel& kernel : kernels().kernels) {
    const cuda::TileShape& shape = kernel.variant.shape;
    const Extent tile = survey.largest_tile();
    if (tile.rows > shape.m || tile.cols > shape.n || !cuda::fits(tasks.frame(), survey, shape)) continue;
    cuda::RankTable table;
    try {
      table = cuda::translate(tasks, survey, surveyed.layout, rank, test::pretend_heap(rank), 4096, shape, {});
    } catch (const Error&) {  // what no kernel runs
      return;
    }
    ASSERT_EQ(table.tiles, survey.tiles().all);
    ASSERT_EQ(table.peer_ctas, cuda::count_beside_idle(shape, survey.tiles(), survey.cluster())) << kernel.variant.name;
    ASSERT_EQ(table.copies.empty(), !survey.copies());
  }
}

std::string chosen(plan::TaskStream& tasks, const cuda::TableSurvey& survey, const TileCounts& leading) {
  try {
    const cuda::Kernels list = test::kernels_for(kernels(), tasks.frame().problem.type);
    return std::string(cuda::choose_kernel(tasks.frame(), survey, leading, list, {}).name);
  } catch (const Error& error) {
    return error.what();
  }
}

TEST(LeadingTiles, LetAllRanksChooseAlike) {
  test::Random random(test::seed_from_environment());
  int alike = 0, apart = 0, differ = 0, alone = 0;
  std::set<std::string> names;
  for (int round = 0; round < 600; ++round) {
    const test::RandomCase c = random_case(random);
    SCOPED_TRACE(test::describe(c));
    const auto first = tasks_of(c, 0);
    const cuda::Surveyed of_first = cuda::survey(*first, 0);
    ASSERT_NO_FATAL_FAILURE(expect_as_in_tables(*first, of_first, 0));
    const std::string kernel = chosen(*first, of_first.tables, of_first.tables.tiles());
    names.insert(kernel);
    alone += of_first.tables.tiles().alone > 0;
    for (int rank = 1; rank < c.problem.ranks; ++rank) {
      const auto tasks = tasks_of(c, rank);
      const cuda::Surveyed own = cuda::survey(*tasks, rank);
      int asked = 0;
      const TileCounts leading = cuda::leading_tiles(*tasks, own.tables, [&] { return ++asked, tasks_of(c, 0); });
      ASSERT_EQ(leading, of_first.tables.tiles()) << "rank " << rank;
      ASSERT_EQ(asked, tasks->ranks_are_alike() ? 0 : 1);
      ASSERT_EQ(chosen(*tasks, own.tables, leading), kernel) << "rank " << rank;
      (asked == 0 ? alike : apart) += 1;
      differ += own.tables.tiles() != leading;
    }
    if (c.problem.ranks > 1 && round % 8 == 0) {
      const int rank = c.problem.ranks - 1;
      const auto tasks = tasks_of(c, rank);
      ASSERT_NO_FATAL_FAILURE(expect_as_in_tables(*tasks, cuda::survey(*tasks, rank), rank));
    }
  }
  EXPECT_GT(alike, 100);
  EXPECT_GT(apart, 100);
  EXPECT_GT(differ, 5) << "ranks whose own tiles would mislead them";
  EXPECT_GT(alone, 50);
  EXPECT_GT(names.size(), 8u);
}

}  // namespace
}  // namespace imbrex
