// The options of a real run, for `run` and `trace --measured`.
#pragma once

#include "command.hpp"
#include "imbrex/run.hpp"

namespace imbrex::cli {

struct RunOptions {
  std::string device = "auto", world = "processes", a, b, out, bias;
  std::int64_t seed = 0, repeat = 1, workers = 1, delays = 0;
  double wait_limit = 0;
  bool verify = false;

  void add_to(CLI::App& command);

  /// What `plan` and these options ask for. Throws Error(invalid_input) where they contradict each other.
  RunRequest request(const PlanOptions& plan) const;
};

/// imbrex::run with progress; where it fails without a report, --json gets the failure.
int run_reporting(const Program& program, const RunRequest& request,
                  const std::function<void(const RunResult&)>& report);

}  // namespace imbrex::cli
