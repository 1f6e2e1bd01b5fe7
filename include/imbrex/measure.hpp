// How long plans take on this machine's GPUs, beside what users have: cuBLAS and NCCL.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "imbrex/plan.hpp"

namespace imbrex {

struct MeasureRequest {
  int ranks = 4;
  std::vector<Problem> problems;  ///< of that many ranks
  /// Called on rank 0, in its process, after the problems: the next one, until there is none. The other ranks wait for
  /// it, within the wait limit.
  std::function<std::optional<Problem>()> next;
  bool all = false;  ///< every plan worth trying, not just the chosen one
  /// "KNOB=VALUE,KNOB=VALUE", as in a plan file: times also the chosen fused plan with these knobs changed.
  std::vector<std::string> tries;
  int rounds = 9;          ///< candidates run in turn, so many times; medians count
  int runs = 8;            ///< epochs in a sample, even; with `all`, two where one takes more than 0.5 ms
  bool threads = false;    ///< ranks are threads of this process instead of processes
  double wait_limit = 30;  ///< seconds
};

/// A plan and its time, the slowest rank's.
struct Measured {
  Strategy strategy = Strategy::sequential;
  Knobs knobs;
  bool chosen = false;  ///< what strategy auto takes
  std::string tried;    ///< the request's text, where it is one of its tries
  double seconds = 0;
};

/// A try that cannot run, and why.
struct Refused {
  std::string tried, message;
};

struct Measurement {
  Problem problem;
  double product_seconds = 0;   ///< of cuBLAS, without communication
  double wire_seconds = 0;      ///< a rank's bytes at 370 GB/s, what four H200s' links carry each way
  std::vector<Measured> plans;  ///< the first is `sequential`: cuBLAS, then NCCL
  std::vector<Refused> refused;
  std::string gpu;
};

/// Nobody is faster with this product and this wire.
inline double roofline_seconds(const Measurement& m) {
  return m.product_seconds > m.wire_seconds ? m.product_seconds : m.wire_seconds;
}

/// Measures each problem on random operands, over ranks on this machine's GPUs; `report` is called on rank 0, in that
/// rank's process, problem by problem. Plans that the executor refuses are left out. Returns the exit code, as run
/// does. Throws Error(invalid_input) where there are too few GPUs, or a try is not one.
int measure(const MeasureRequest& request, const std::function<void(const Measurement&)>& report);

/// The fastest plan of each measurement as a table for machines/tuned/ (docs/cuda-executor.md). `date`: of the
/// measurements, which are of one kind of GPU.
std::string tuning_table(const std::vector<Measurement>& measurements, const std::string& date);

const Measured& fastest(const Measurement& m);

/// Knobs as JSON, on one line, as in a plan file.
std::string knobs_to_json(const Knobs& knobs);

}  // namespace imbrex
