// A run of a random case by the program's job, which judges the result.
#pragma once

#include <cstdint>

#include "jobs/run.hpp"
#include "support/random_plan.hpp"

namespace imbrex::test {

/// Ranks are threads; the result is within its bounds, and the same bits twice, or the run fails.
inline jobs::RunRequest verified_run(Random& random, const RandomCase& c) {
  jobs::RunRequest request;
  request.problem = c.problem;
  request.strategy = c.strategy;
  request.knobs = c.knobs;
  request.seed = static_cast<std::uint64_t>(random.between(0, 1 << 30));
  request.verify = true;
  request.repeat = 2;
  request.threads = true;
  request.wait_limit = 60;
  request.cpu.workers = static_cast<int>(random.between(1, 2));
  return request;
}

}  // namespace imbrex::test
