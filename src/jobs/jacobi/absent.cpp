#include "base/check.hpp"
#include "jobs/jacobi/solver.hpp"

namespace imbrex::jobs::jacobi {

std::unique_ptr<Solver> cuda_solver(World&, const JacobiRequest&, std::uint32_t, std::uint32_t) {
  throw Error(ErrorCode::invalid_input, "device cuda: this build has no CUDA");
}

}  // namespace imbrex::jobs::jacobi
