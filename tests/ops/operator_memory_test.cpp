// What docs/operators.md says of GPU memory is what operators of any M are made with.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "choose/choose_gpu.hpp"
#include "execute/cuda/tables/pool_needs.hpp"
#include "imbrex/options.hpp"
#include "ops/plans_by_size.hpp"
#include "plan/task_stream.hpp"

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
  EXPECT_EQ(std::stod(found("tables of all plans[^\\n]* at most (\\d+) MiB")) * mib,
            static_cast<double>(ops::most_table_bytes));
  EXPECT_EQ(std::stod(found("symmetric heap, for workspaces of all operators \\| (\\d+) MiB at first")) * mib,
            static_cast<double>(CudaOptions{}.heap_bytes));
}

}  // namespace
}  // namespace imbrex
