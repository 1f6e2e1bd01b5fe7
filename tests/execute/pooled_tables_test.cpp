// Plans of an operator of any M on GPUs, up to their tables and without a GPU: ranks that do not communicate come to
// the same.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "choose/choose_gpu.hpp"
#include "execute/cuda/products/kernel_choice.hpp"
#include "execute/cuda_tables.hpp"
#include "execute/plan_pool.hpp"
#include "plan/problem.hpp"
#include "support/kernel_list.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

using execute::HeapLayout;
using execute::PlanPool;
using test::Random;

const test::KernelList& kernels() {
  static const test::KernelList list = test::read_kernel_list(KERNEL_LIST);
  return list;
}

// As the operator's: without copy engines and libraries.
plan::Candidate choice(const Problem& problem) {
  return choose::choose_gpu_candidate(problem, {}, {}, {"NVIDIA H200", 9, false, false}, {});
}

/// One rank's pool, in a heap that has room for all.
struct Pool {
  std::size_t end = 256;
  PlanPool plans;

  explicit Pool(const execute::PlanShare& first)
      : plans([this](std::size_t bytes) { return std::exchange(end, end + (bytes + 255) / 256 * 256); }, first, 0) {}
};

/// One rank's plan in its pool, as far as a GPU is not needed.
struct Prepared {
  std::unique_ptr<plan::TaskStream> tasks;
  cuda::Surveyed surveyed;
  std::size_t area = 0, offset = 0;

  Prepared(const Problem& problem, const plan::Candidate& c, int rank, Pool& pool)
      : tasks(plan::make_rank_tasks(problem, c.strategy, c.knobs, rank)), surveyed(cuda::survey(*tasks, rank)) {
    area = pool.plans.place(surveyed.layout);
    offset = pool.plans.offset(area);
  }

  cuda::RankTable table(int rank, const cuda::TileShape& shape) {
    return cuda::translate(*tasks, surveyed.tables, surveyed.layout, rank, test::pretend_heap(rank), offset, shape, {});
  }
};

void expect_alike(const HeapLayout& one, const HeapLayout& other, const Plan& frame) {
  ASSERT_EQ(one.bytes(), other.bytes());
  for (int b = 0; b < std::ssize(frame.buffers); ++b) {
    ASSERT_EQ(one.in_heap(b), other.in_heap(b)) << frame.buffers[static_cast<std::size_t>(b)].name;
    if (!one.in_heap(b)) continue;
    for (const std::uint64_t epoch : {0, 1}) ASSERT_EQ(one.offset(b, epoch), other.offset(b, epoch));
  }
  for (const std::uint64_t epoch : {0, 1}) ASSERT_EQ(one.counter(0, epoch), other.counter(0, epoch));
}

/// By receiving rank and signal, what the kernels of all ranks post in an epoch.
using Posts = std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint32_t>;

void count_posts(Posts& posts, const cuda::RankTable& table, const Prepared& prepared) {
  const HeapHandle heap = test::pretend_heap(0);
  const HeapLayout& layout = prepared.surveyed.layout;
  for (const cuda::TaskEntry& task : table.tasks)
    for (std::uint32_t i = 0; i < task.post_count; ++i) {
      const std::uint64_t at = table.posts[task.posts + i].counter - reinterpret_cast<std::uintptr_t>(heap.base),
                          counter = at % heap.stride - prepared.offset - layout.counter(0, 0);
      ASSERT_EQ(counter % HeapLayout::counter_stride, 0u);
      ++posts[{at / heap.stride, counter / HeapLayout::counter_stride}];
    }
}

// Where a plan lies, which kernel runs it, and how often it posts, which each rank must know of itself.
void prepare_everywhere(const Problem& problem, std::vector<std::unique_ptr<Pool>>& pools) {
  const plan::Candidate chosen = choice(problem);
  ASSERT_EQ(chosen.strategy, Strategy::fused);
  std::vector<Prepared> ranks;
  for (int r = 0; r < problem.ranks; ++r) {
    ranks.emplace_back(problem, chosen, r, *pools[static_cast<std::size_t>(r)]);
    ASSERT_EQ(ranks.back().area, ranks.front().area);
    ASSERT_EQ(ranks.back().offset, ranks.front().offset);
    ASSERT_NO_FATAL_FAILURE(
        expect_alike(ranks.back().surveyed.layout, ranks.front().surveyed.layout, ranks.front().tasks->frame()));
  }
  Prepared& first = ranks.front();
  const cuda::Kernels list = test::kernels_for(kernels(), problem.type);
  const cuda::KernelVariant& kernel =
      cuda::choose_kernel(first.tasks->frame(), first.surveyed.tables, first.surveyed.tables.tiles(), list, {});
  Posts posts;
  for (int r = 0; r < problem.ranks; ++r) {
    Prepared& own = ranks[static_cast<std::size_t>(r)];
    const cuda::RankTable table = own.table(r, kernel.shape);
    EXPECT_TRUE(table.copies.empty()) << kernel.name;
    ASSERT_NO_FATAL_FAILURE(count_posts(posts, table, own));
  }
  for (int r = 0; r < problem.ranks; ++r) {
    const HeapLayout& own = ranks[static_cast<std::size_t>(r)].surveyed.layout;
    for (int signal = 0; signal < own.signals(r); ++signal)
      ASSERT_EQ((posts[{static_cast<std::uint64_t>(r), static_cast<std::uint64_t>(signal)}]), own.posts(r, signal))
          << "rank " << r << ", signal " << signal;
  }
}

TEST(PooledTables, AreAlikeWhereNoRankIsAsked) {
  Random random(test::seed_from_environment());
  for (int round = 0; round < 24; ++round) {
    const int ranks = static_cast<int>(random.one_of({1, 2, 3, 4, 8}));
    Problem largest;
    largest.op = random.one_of({Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce,
                                Operator::gemm_all_to_all});
    largest.ranks = ranks;
    largest.type = random.one_of({Type::bf16, Type::fp16, Type::fp32, Type::e4m3});
    const std::int64_t unit = plan::splits_m(largest.op) ? ranks : 1, step = random.chance(0.7) ? 16 : 1;
    largest.n = step * ranks * random.between(1, 40);
    largest.k = step * ranks * random.between(1, 40);
    largest.m = unit * random.between(1, 700);
    largest.bias = random.chance(0.3);
    if (largest.type == Type::e4m3) largest.scales = random.one_of({Scales::none, Scales::tensor, Scales::row});
    if (largest.op == Operator::all_gather_gemm) {
      test::add_further(random, largest, 40 * step * ranks);
      for (std::int64_t& n : largest.more_n) n = n / (step * ranks) * step * ranks;
      if (largest.more_n[0] == 0) largest.more_n = {};
    }
    SCOPED_TRACE(fmt::format("{} {} x {} x {} {} on {} ranks", name_of(largest.op), largest.m, largest.n, largest.k,
                             name_of(largest.type), ranks));
    std::vector<std::unique_ptr<Pool>> pools;
    for (int r = 0; r < ranks; ++r) {
      const plan::Candidate chosen = choice(largest);
      const auto tasks = plan::make_rank_tasks(largest, chosen.strategy, chosen.knobs, r);
      pools.push_back(std::make_unique<Pool>(cuda::survey(*tasks, r).layout.share()));
    }
    std::vector<std::int64_t> sizes{largest.m, unit};
    for (int i = 0; i < 6; ++i) sizes.push_back(unit * random.between(1, largest.m / unit));
    for (const std::int64_t m : sizes) {
      Problem problem = largest;
      problem.m = m;
      ASSERT_NO_FATAL_FAILURE(prepare_everywhere(problem, pools)) << "M = " << m;
    }
  }
}

}  // namespace
}  // namespace imbrex
