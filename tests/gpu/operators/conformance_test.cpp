// Every operator on GPUs, by own kernels and by libraries: the list that the CPU runs too (tests/conformance).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "conformance/cases.hpp"
#include "execute/cuda/refusal.hpp"
#include "gpu/operators/operator_subject.hpp"
#include "plan/problem.hpp"

namespace imbrex {
namespace {

using test::ConformanceCase;

// None: the strategy does not know the case, or ranks that share a GPU do not run it.
std::optional<OperatorOptions> options_of(Strategy strategy, const ConformanceCase& c) {
  const bool fused = strategy == Strategy::fused;
  if (!test::runs_here(strategy, fused ? Transport::store : Transport::push)) return {};
  if (fused && c.what.options.codec) return {};  // it sends no codes
  const bool signaled = strategy == Strategy::signaled;
  if (signaled && (c.what.any_m || !plan::has_one_output(c.what.problem))) return {};
  if (!fused && !cuda::refusal_of_library_bias(c.what.problem).empty()) return {};
  OperatorOptions options = test::options_of(strategy, Transport::store, 0);
  options.codec = c.what.options.codec;
  return options;
}

// All cases in one world, as programs have them: the operators share its heap. What is refused must be of odd sizes.
void run_cases(World& world, Strategy strategy) {
  int ran = 0, refused = 0;
  for (const ConformanceCase& c : test::conformance_cases(world.size())) {
    const std::optional<OperatorOptions> options = options_of(strategy, c);
    if (!options) continue;
    test::RandomOperator what = c.what;
    what.options = *options;
    try {
      test::judge_calls(
          world, world, what, Device::cuda,
          [](GemmOperator& op, const Problem& problem) {
            Plan plan = op.plan();
            plan.problem.m = problem.m;
            return plan;
          },
          [&](GemmOperator& op, std::vector<Operand> operands, test::ProblemMemory& memory) {
            test::call_on_gpu(world, op, std::move(operands), memory);
          });
      ++ran;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input || !c.odd)
        throw Error(error.code(), fmt::format("{}: {}", c.name, error.what()));
      ++refused;
    }
  }
  if (ran < 40) throw Error(ErrorCode::unsound, fmt::format("only {} cases ran", ran));
  if (world.rank() == 0) fmt::print("{} cases right, {} of odd sizes refused\n", ran, refused);
}

class GpuConformance : public testing::TestWithParam<Strategy> {};

TEST_P(GpuConformance, IsRight) {
  NEEDS_GPUS(2);
  const Strategy strategy = GetParam();
  if (!test::runs_here(strategy, strategy == Strategy::fused ? Transport::store : Transport::push))
    GTEST_SKIP() << "ranks that are threads and share a GPU run no library's collectives";
  EXPECT_EQ(test::on_ranks(test::most_ranks(), 60, [&](World& world) { run_cases(world, strategy); }), 0);
}

#if defined(IMBREX_HAVE_LIBRARIES)
constexpr Strategy strategies[] = {Strategy::fused, Strategy::sequential, Strategy::decomposed, Strategy::signaled};
#else
constexpr Strategy strategies[] = {Strategy::fused};
#endif

INSTANTIATE_TEST_SUITE_P(Strategies, GpuConformance, testing::ValuesIn(strategies),
                         [](const auto& info) { return std::string(name_of(info.param)); });

}  // namespace
}  // namespace imbrex
