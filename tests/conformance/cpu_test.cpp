// Every operator on the CPU, by each strategy and by the plans that simulated time chooses for GPUs: the list that GPUs
// run too (tests/gpu/operators/conformance_test.cpp).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "conformance/cases.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/error.hpp"
#include "imbrex/machine.hpp"
#include "plan/problem.hpp"

namespace imbrex {
namespace {

using test::ConformanceCase;

constexpr int ranks = 4;

enum class Way { open, sequential, decomposed, fused, signaled, simulated };
constexpr std::string_view way_names[] = {"open", "sequential", "decomposed", "fused", "signaled", "simulated"};

// None: the way does not know the case.
std::optional<OperatorOptions> options_of(Way way, const ConformanceCase& c) {
  OperatorOptions options = test::on_cpu();
  options.codec = c.what.options.codec;
  switch (way) {
    case Way::open: break;
    case Way::sequential: options.strategy = Strategy::sequential; break;
    case Way::decomposed: options.strategy = Strategy::decomposed; break;
    case Way::fused:
      if (options.codec) return {};  // it sends no codes
      options.strategy = Strategy::fused;
      break;
    case Way::signaled:
      if (!plan::has_one_output(c.what.problem)) return {};
      options.strategy = Strategy::signaled;
      break;
    case Way::simulated: {
      if (c.what.any_m) return {};  // a plan that is given is of one M
      const Machine machine = load_machine("4xh200");
      options.plan = std::make_shared<const Plan>(choose_plan(c.what.problem, machine, options));
      options.codec = {};
      break;
    }
  }
  return options;
}

class Conformance : public testing::TestWithParam<std::tuple<Way, std::size_t>> {};

TEST_P(Conformance, IsRight) {
  const auto [way, number] = GetParam();
  const ConformanceCase c = test::conformance_cases(ranks).at(number);
  const std::optional<OperatorOptions> options = options_of(way, c);
  if (!options) return;
  test::RandomOperator what = c.what;
  what.options = *options;
  if (way == Way::simulated) {
    const auto finding = check(*what.options.plan);
    ASSERT_FALSE(finding.has_value()) << finding->message;
    EXPECT_GT(make_simulator(load_machine("4xh200"))->prepare(what.options.plan)->run({}).seconds, 0);
  }
  const auto plan_of = [&](GemmOperator& op, const Problem& problem) {
    return what.options.plan ? op.plan() : choose_plan(problem, nominal_host_machine(), what.options);
  };
  const auto call = [](GemmOperator& op, const std::vector<Operand>& operands, test::ProblemMemory&) {
    op.run(operands);
  };
  EXPECT_EQ(run_threads(ranks, {.heap_bytes = 1 << 24, .wait_limit = 60},
                        [&](World& world) {
                          test::judge_calls(world, world, what, Device::cpu, plan_of, call);
                          return 0;
                        }),
            0)
      << c.name;
}

std::string name_of_case(const testing::TestParamInfo<std::tuple<Way, std::size_t>>& info) {
  const auto [way, number] = info.param;
  return fmt::format("{}_{}", way_names[static_cast<int>(way)], test::conformance_cases(ranks)[number].name);
}

INSTANTIATE_TEST_SUITE_P(Cases, Conformance,
                         testing::Combine(testing::Values(Way::open, Way::sequential, Way::decomposed, Way::fused,
                                                          Way::signaled, Way::simulated),
                                          testing::Range(std::size_t{0}, test::conformance_cases(ranks).size())),
                         name_of_case);

// The list says what it claims: each operator has as many cases, and names are apart.
TEST(ConformanceCases, CoverEachOperatorAlike) {
  std::map<Operator, int> seen;
  std::set<std::string> names;
  for (const ConformanceCase& c : test::conformance_cases(ranks)) {
    EXPECT_TRUE(names.insert(c.name).second) << c.name;
    EXPECT_NO_THROW(validate(c.what.problem)) << c.name;
    if (plan::has_one_output(c.what.problem) && !c.what.options.codec) ++seen[c.what.problem.op];
  }
  ASSERT_EQ(seen.size(), 4u);
  for (const auto& [op, count] : seen) EXPECT_EQ(count, seen.begin()->second) << name_of(op);
  EXPECT_GE(seen.begin()->second, 15);
}

}  // namespace
}  // namespace imbrex
