#include "apps/jacobi/ways.hpp"

namespace imbrex::apps::jacobi {

std::unique_ptr<Solver> cuda_solver(World& world, const JacobiRequest& request, std::uint32_t grid_rows,
                                    std::uint32_t grid_columns) {
  return solver_here(world, request, grid_rows, grid_columns);
}

}  // namespace imbrex::apps::jacobi
