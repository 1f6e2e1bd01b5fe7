// Jacobi's relaxation of the Laplace equation on a grid of PEs, from start to end: a field from a seed, sweeps in one
// of five ways, residuals, and results compared with a serial solution, bit by bit (docs/jacobi.md).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/jacobi/request.hpp"

namespace imbrex::program {

using apps::JacobiRequest, apps::JacobiTile, apps::JacobiWay, apps::parse_jacobi_tile, apps::parse_jacobi_way;

struct JacobiResult {
  Device device = Device::cpu;  ///< that the ranks worked on
  int grid_rows = 1, grid_columns = 1;
  std::string blocks;             ///< "32 tiles of 128 x 256 in registers, 561 threads each"
  std::vector<double> seconds;    ///< per repeat, of the slowest rank, all sweeps
  std::vector<double> residuals;  ///< the sum of all changes' sizes in sweep `every`, 2 * every, ...
  bool verified = false;
  std::string message;  ///< what was wrong, where; empty if nothing was
};

/// As run() of program/run.hpp.
int run_jacobi(const JacobiRequest& request, const std::function<void(const JacobiResult&)>& report);

}  // namespace imbrex::program
