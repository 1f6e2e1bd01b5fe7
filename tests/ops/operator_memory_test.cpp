// What docs/operators.md says of GPU memory is what operators of any M are made with.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "choose/choose_gpu.hpp"
#include "execute/cuda/tables/pool_needs.hpp"
#include "imbrex/options.hpp"
#include "ops/plans_by_size.hpp"
#include "plan/problem.hpp"
#include "plan/task_stream.hpp"
#include "support/random_plan.hpp"

namespace imbrex {
namespace {

constexpr double mib = 1 << 20;

std::string page() {
  std::ifstream file(OPERATORS_PAGE);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string found(const std::string& pattern) {
  std::smatch match;
  const std::string text = page();
  EXPECT_TRUE(std::regex_search(text, match, std::regex(pattern))) << OPERATORS_PAGE << " has no " << pattern;
  return match.size() > 1 ? match.str(1) : std::string();
}

// The formula, whose letters stand for an operator's numbers: a sum of products.
double value_of(const std::string& formula, double w, double c, double o) {
  double sum = 0;
  std::istringstream terms(formula);
  for (std::string term; std::getline(terms, term, '+');) {
    double product = 1;
    std::istringstream factors(term);
    for (std::string factor; factors >> factor;) {
      if (factor == "W" || factor == "C" || factor == "O")
        product *= factor == "W" ? w : factor == "C" ? c : o;
      else if (const std::size_t slash = factor.find('/'); slash != std::string::npos)
        product *= std::stod(factor.substr(0, slash)) / std::stod(factor.substr(slash + 1));
      else
        product *= std::stod(factor);
    }
    sum += product;
  }
  return sum;
}

/// One copy of the largest plan's workspaces, its counters, the largest output where peers write it, and what an
/// operator of any M takes of the heap: as it is made, without copy engines.
struct Memory {
  double workspaces = 0, counters = 0, output = 0, heap = 0;
};

Memory memory_of(const Problem& largest, int rank) {
  cuda::PoolNeeds needs;
  for (const std::int64_t m : ops::sizes_to_survey(largest)) {
    Problem problem = largest;
    problem.m = m;
    const auto [strategy, knobs] =
        choose::choose_gpu_candidate(problem, Strategy::fused, {}, {"NVIDIA H100 80GB HBM3", 9, false, false}, {});
    needs.add(*plan::make_rank_tasks(problem, strategy, knobs, rank), rank, false);
  }
  Memory memory{static_cast<double>(needs.share.bytes), static_cast<double>(needs.share.counters),
                needs.out_in_heap ? static_cast<double>(needs.out_bytes) : 0, 0};
  needs.leave_room();
  memory.heap = static_cast<double>(needs.heap_bytes());
  return memory;
}

plan::Candidate chosen(Problem problem, std::int64_t m) {
  problem.m = m;
  return choose::choose_gpu_candidate(problem, {}, {}, {"NVIDIA H200", 9, false, false}, {});
}

bool by_kernels(const plan::Candidate& candidate) {
  return candidate.strategy != Strategy::sequential && candidate.strategy != Strategy::decomposed;
}

// What an M takes by the choice for another.
cuda::PoolNeeds needs_of(Problem problem, std::int64_t m, const plan::Candidate& candidate) {
  problem.m = m;
  cuda::PoolNeeds needs;
  needs.add(*plan::make_rank_tasks(problem, candidate.strategy, candidate.knobs, 0), 0, false);
  return needs;
}

// Calls of any M take no memory: it holds the choice for that M, or for a larger one that was surveyed.
TEST(OperatorMemory, HoldsAPlanForEveryM) {
  const std::uint64_t seed = test::seed_from_environment();
  std::mt19937_64 random(seed);
  const auto draw = [&](std::int64_t least, std::int64_t most, std::int64_t unit) {
    const double log = std::uniform_real_distribution<>(std::log(least), std::log(most))(random);
    return std::max<std::int64_t>(1, std::llround(std::exp(log) / static_cast<double>(unit))) * unit;
  };
  for (int i = 0; i < 24; ++i) {
    const int ranks = std::array{2, 4, 8}[random() % 3];
    const Problem largest{static_cast<Operator>(i % 4),
                          draw(64, 8192, ranks),
                          draw(512, 16384, 128),
                          draw(512, 16384, 64 * ranks),
                          ranks,
                          Type::bf16};
    SCOPED_TRACE(fmt::format("seed {}: {} M={} N={} K={}, {} ranks", seed, name_of(largest.op), largest.m, largest.n,
                             largest.k, ranks));
    const std::vector<std::int64_t> sizes = ops::sizes_to_survey(largest);
    EXPECT_EQ(sizes.front(), largest.m);
    cuda::PoolNeeds needs;
    for (const std::int64_t size : sizes)
      if (const plan::Candidate choice = chosen(largest, size); by_kernels(choice))
        needs = needs.joined(needs_of(largest, size, choice));
    needs.leave_room();
    int others = 0;
    for (int call = 0; call < 40; ++call) {
      const std::int64_t m = draw(1, largest.m, plan::splits_m(largest.op) ? ranks : 1);
      if (m > largest.m) continue;
      const plan::Candidate choice = chosen(largest, m);
      if (!by_kernels(choice) || needs.hold(needs_of(largest, m, choice))) continue;
      ++others;
      EXPECT_TRUE(std::any_of(sizes.begin(), sizes.end(),
                              [&](std::int64_t size) {
                                const plan::Candidate other = chosen(largest, size);
                                return size > m && (!by_kernels(other) || needs.hold(needs_of(largest, m, other)));
                              }))
          << "M = " << m;
    }
    EXPECT_LE(others, 4) << "more sizes than these should have the plan that was chosen for them";
  }
}

// What is thought of a plan's tables, by which memory is taken for them, is less than they are for few rows only.
TEST(OperatorMemory, HoldsTheTablesOfPlans) {
  const std::uint64_t seed = test::seed_from_environment();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    const int ranks = std::array{2, 4, 8}[random() % 3];
    const auto unit = [&](int most) { return 1 + static_cast<std::int64_t>(random() % static_cast<unsigned>(most)); };
    const Problem problem{
        static_cast<Operator>(i % 4), unit(512) * ranks, unit(64) * 128, unit(16) * 64 * ranks, ranks, Type::bf16};
    const plan::Candidate choice = chosen(problem, problem.m);
    if (!by_kernels(choice)) continue;
    const cuda::PoolNeeds needs = needs_of(problem, problem.m, choice);
    EXPECT_LE(needs.table_bytes, 2 * ops::table_bytes_of(problem, problem.m) + (std::size_t{1} << 17)) << fmt::format(
        "seed {}: {} M={} N={} K={}, {} ranks", seed, name_of(problem.op), problem.m, problem.n, problem.k, ranks);
  }
}

TEST(OperatorMemory, FollowsTheFormula) {
  const std::string formula = found("\\n    heap = ([^\\n]*)\\n");
  for (const Operator op :
       {Operator::all_gather_gemm, Operator::gemm_reduce_scatter, Operator::gemm_all_reduce, Operator::gemm_all_to_all})
    for (const int ranks : {2, 4, 8})
      for (const std::int64_t m : {8, 1000, 4096, 16384}) {
        const Problem problem{op, m, 8192, 4096, ranks, Type::bf16};
        const Memory memory = memory_of(problem, ranks - 1);
        // Each part is rounded to 256 bytes.
        EXPECT_NEAR(value_of(formula, memory.workspaces, memory.counters, memory.output), memory.heap, 1024 + 512)
            << name_of(op) << ", M = " << m << ", " << ranks << " ranks";
        EXPECT_EQ(memory_of(problem, 0).heap, memory.heap);
      }
}

TEST(OperatorMemory, IsThatOfTheTable) {
  const std::vector<Operator> all = {Operator::all_gather_gemm, Operator::gemm_reduce_scatter,
                                     Operator::gemm_all_reduce, Operator::gemm_all_to_all};
  const std::vector<std::string> names = {"AllGatherGemm", "GemmReduceScatter", "GemmAllReduce", "GemmAllToAll"};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Memory memory = memory_of({all[i], 8192, 8192, 8192, 4, Type::bf16}, 0);
    const std::string row =
        fmt::format("| `{}` | {:.1f} MiB | {:.0f} | {:.0f} MiB | {:.1f} MiB |", names[i], memory.workspaces / mib,
                    memory.counters, memory.output / mib, memory.heap / mib);
    EXPECT_NE(page().find(row), std::string::npos) << "the page needs the row\n" << row;
  }
}

TEST(OperatorMemory, HasTheLimitsThatThePageNames) {
  EXPECT_EQ(std::stod(found("tables of plans have (\\d+) MiB")) * mib, static_cast<double>(ops::spare_table_bytes));
  const Problem one{Operator::gemm_all_to_all, 1024, 128, 128, 1, Type::bf16};
  const double bytes = std::stod(found("(\\d+) bytes for each tile")),
               rows = std::stod(found("up to (\\d+) rows a rank"));
  EXPECT_EQ(8 * bytes, static_cast<double>(ops::table_bytes_of(one, one.m)));
  EXPECT_EQ(2 * bytes * rows / 128, static_cast<double>(ops::table_bytes_of(one, std::llround(rows))));
  EXPECT_EQ(std::stod(found("symmetric heap, for workspaces of all operators \\| (\\d+) MiB at first")) * mib,
            static_cast<double>(CudaOptions{}.heap_bytes));
}

}  // namespace
}  // namespace imbrex
