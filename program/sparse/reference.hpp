// What one GPU's own library needs for the same system.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/sparse/matrix.hpp"

namespace imbrex::program::sparse {

using namespace apps::sparse;

template <typename T>
struct Reference {
  std::string library;
  double analysis_seconds = 0;
  std::vector<double> seconds;  ///< per solve
  std::vector<T> solution;      ///< in the order of solving
};

/// cuSPARSE's SpSV on the calling thread's GPU, of one right-hand side, by rows in the order of solving: so it knows
/// the transpose, too, as rows. `seconds_of` times a call and what it enqueues. Throws Error(runtime_failure) where the
/// library is missing or fails, and Error(invalid_input) in a build without it.
template <typename T>
Reference<T> solve_by_library(const Triangular& system, const std::vector<T>& right, int repeat,
                              const std::function<double(const std::function<void()>&)>& seconds_of);

}  // namespace imbrex::program::sparse
