// imbrex simulate --sweep: one size takes several values, and every strategy is predicted for each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command.hpp"

namespace imbrex::cli {

struct Sweep {
  std::string name;                  ///< m, n, k or ranks
  std::vector<std::int64_t> values;  ///< ascending
  bool by_factor = false;            ///< each is the last one times the same
};

/// "m=1024:16384:x2" (each value twice the last one), "m=1000:5000:+1000" or "m=64,96,4096". Throws
/// Error(invalid_input) naming what is wrong.
Sweep parse_sweep(const std::string& text);

struct SweepRequest {
  Sweep sweep;
  std::string csv, plot;  ///< files to write, or empty
};

/// Prints a table of what `machine` is predicted to take, and writes what is asked for. Returns the exit code.
int simulate_sweep(const Program& program, const SweepRequest& request, const PlanOptions& plan,
                   const Machine& machine);

}  // namespace imbrex::cli
