// One all-reduce from start to end: tensors from a file or a seed, results checked and written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "imbrex/collectives.hpp"
#include "program/run.hpp"

namespace imbrex::program {

/// What is done after an all-reduce, as AllReduceRmsNorm says. Its outputs are PREFIX.rank<r>.npy and, of
/// residual_out, PREFIX.residual.rank<r>.npy.
struct RmsNormRequest {
  float eps = 1e-6f;
  std::string residual_path;             ///< .npy, rows x cols; empty: from the seed
  std::string weight_path;               ///< .npy, cols elements; empty: from the seed
  std::optional<Type> weight_type = {};  ///< not set: the tensors' type
};

struct AllReduceRequest {
  Device device = Device::automatic;
  int ranks = 4;
  Type type = Type::bf16;
  std::int64_t rows = 0, cols = 0;  ///< of each rank's tensor; with a file: taken from it, or 0, or as it says
  AllReduceOptions options;
  std::optional<RmsNormRequest> rms_norm;  ///< of `options`, algorithm and ctas count; no codec

  std::uint64_t seed = 0;
  std::string a_path;      ///< .npy, float32 or float16, the ranks' tensors stacked by rank; empty: random ones
  std::string out_prefix;  ///< not empty: PREFIX.rank<r>.npy, float32

  bool verify =
      false;  ///< against a float64 sum, every element within the reported bound; ranks and repeats bitwise equal
  int repeat = 1;
  bool threads = false;   ///< ranks are threads of this process instead of processes
  double wait_limit = 0;  ///< seconds; 0: the usual one
};

struct AllReduceResult {
  std::int64_t rows = 0, cols = 0;
  Device device = Device::cpu;  ///< that the ranks worked on
  std::vector<double> seconds;  ///< per repeat, of the slowest rank
  AllReduceReport report;       ///< of the last repeat; with rms_norm without errors and groups
  bool verified = false;
  double max_error_over_bound = 0;  ///< over all elements and ranks; right is at most 1
  std::string message;              ///< what was wrong, where; empty if nothing was
};

/// As run().
int run_all_reduce(const AllReduceRequest& request, const std::function<void(const AllReduceResult&)>& report);

}  // namespace imbrex::program
