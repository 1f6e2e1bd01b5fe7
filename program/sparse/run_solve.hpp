// One triangular solve over ranks from start to end: a matrix from a file or a generator, right-hand sides from a seed,
// the result checked and written.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "apps/sparse/generate.hpp"
#include "apps/sparse/matrix.hpp"
#include "apps/sparse/schedule.hpp"
#include "apps/sparse/solver.hpp"
#include "imbrex/options.hpp"

namespace imbrex::program::sparse {

using namespace apps::sparse;

struct SolveRequest {
  Device device = Device::automatic;
  int ranks = 4;
  std::string matrix_title, matrix_text;  ///< Matrix Market, and how messages name it; no title: generated
  Kind kind = Kind::grid;
  std::int64_t rows = 0;
  Part part = Part::whole;
  bool transposed = false;
  std::int64_t columns = 1;  ///< right-hand sides; elements in [-1, 1) by the seed
  bool single = false;       ///< fp32 instead of fp64
  Way way = Way::in_kernel;
  std::optional<Sharing> sharing;
  std::int64_t block = 0;  ///< rows of a block; 0: by the number of ranks
  std::uint64_t seed = 0;
  std::string out;       ///< not empty: the solution, a Matrix Market array
  bool verify = false;   ///< residuals row by row within their bounds; repeats bitwise equal
  bool compare = false;  ///< with cuSPARSE: one rank on a GPU, one right-hand side
  int repeat = 1;
  bool threads = false;  ///< ranks are threads of this process instead of processes
  int workers = 1;       ///< CPU: threads a rank
  int ranks_per_gpu = 1;
  double wait_limit = 0;  ///< seconds; 0: the usual one
};

struct SolveResult {
  Device device = Device::cpu;
  std::int64_t rows = 0, entries = 0;  ///< of the triangle, diagonal included
  std::uint32_t levels = 0;
  Sharing sharing = Sharing::contiguous;
  std::int64_t block = 0, cut_rows = 0, messages = 0;
  double analysis_seconds = 0;  ///< levels, shares and schedules; of the slowest rank
  std::vector<double> seconds;  ///< per solve, of the slowest rank
  bool verified = false;
  double max_error_over_bound = 0;  ///< right is at most 1
  bool overflows = false;           ///< nothing is wrong, but the solution has no place in the type
  std::string message;              ///< what was wrong, or overflows, where; empty if nothing was
  std::uint64_t digest = 0;         ///< of the solution's bits
  struct Library {
    std::string name;
    double analysis_seconds = 0;
    std::vector<double> seconds;
    double max_error_over_bound = 0;
  };
  std::optional<Library> library;
};

/// As run() of program/run.hpp. Throws Error(invalid_input) naming line or row of a matrix that cannot be solved.
int run_solve(const SolveRequest& request, const std::function<void(const SolveResult&)>& report);

}  // namespace imbrex::program::sparse
