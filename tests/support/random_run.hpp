// Runs of random cases: by the program's job, which judges the result, and on operands whose results are exact.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>

#include "imbrex/advanced/execute.hpp"
#include "program/run.hpp"
#include "support/exact_run.hpp"
#include "support/random_plan.hpp"

namespace imbrex::test {

/// Ranks are threads; the result is within its bounds, and the same bits twice, or the run fails.
inline program::RunRequest verified_run(Random& random, const RandomCase& c) {
  program::RunRequest request;
  request.problem = c.problem;
  request.strategy = c.strategy;
  request.knobs = c.knobs;
  request.seed = static_cast<std::uint64_t>(random.between(0, 1 << 30));
  request.verify = true;
  request.repeat = 2;
  request.threads = true;
  request.device = Device::cpu;  // one rank would take a GPU where there is one
  request.wait_limit = 60;
  request.cpu.workers = static_cast<int>(random.between(1, 2));
  return request;
}

/// Within its bound, and the same bits twice. Returns the largest error over the bound.
inline double expect_right(Random& random, const RandomCase& c) {
  const program::RunRequest request = verified_run(random, c);
  SCOPED_TRACE(describe(c));
  program::RunResult result;
  const int code = run(request, [&](const program::RunResult& r) { result = r; });
  EXPECT_EQ(code, 0) << result.message;
  EXPECT_TRUE(result.verified);
  return result.max_error_over_bound;
}

/// A case of fp32: its plan is proved and exact over three epochs, with delays where `number` divides by four.
inline void expect_exact(Random& random, const RandomCase& c, int number) {
  SCOPED_TRACE(describe(c));
  const Plan plan = make_plan(c.problem, c.strategy, c.knobs);
  const auto finding = check(plan);
  ASSERT_FALSE(finding.has_value()) << finding->message;
  const WorldOptions world{.heap_bytes = 1 << 24, .wait_limit = 60};
  CpuOptions options;
  options.workers = static_cast<int>(random.between(1, 2));
  options.testing.delays = number % 4 == 0 ? static_cast<std::uint64_t>(number) + 1 : 0;
  options.testing.max_delay = 1e-4;
  ASSERT_EQ(run_threads(c.problem.ranks, world, [&](World& w) { return run_exact(w, plan, options, 3); }), 0);
}

}  // namespace imbrex::test
