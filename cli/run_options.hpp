// The options of a real run, for `run` and `trace --measured`.
#pragma once

#include <array>

#include "command.hpp"
#include "program/run.hpp"

namespace imbrex::cli {

struct RunOptions {
  std::string device = "auto", world = "processes", a, b, out, bias, a_scale, b_scale, kernel;
  std::array<program::RunRequest::Further, max_products - 1> further;
  std::int64_t seed = 0, repeat = 1, workers = 1, delays = 0, ranks_per_gpu = 1, verify_seed = 0;
  double wait_limit = 0;
  bool verify = false, verify_all = false;

  void add_to(CLI::App& command);

  /// Throws Error(invalid_input) where outputs could not be written.
  void expect_writable_out() const;

  /// Throws Error(invalid_input) unless scales come from files where A and B do and the problem has any.
  void expect_scales(const Problem& problem, bool from_files) const;

  /// Throws Error(invalid_input) unless further B come from files where A and B do and the plan, if there is one, is of
  /// as many, and unless further biases come from files where the bias does.
  void expect_further(const PlanOptions& plan, const Problem& problem, bool from_files) const;

  /// What `plan` and these options ask for. Throws Error(invalid_input) where they contradict each other.
  program::RunRequest request(const PlanOptions& plan) const;
};

/// imbrex::run with progress; where it fails without a report, --json gets the failure.
int run_reporting(const Program& program, const program::RunRequest& request,
                  const std::function<void(const program::RunResult&)>& report);

}  // namespace imbrex::cli
