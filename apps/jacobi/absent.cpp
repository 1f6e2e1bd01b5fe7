#include "apps/common/check.hpp"
#include "apps/jacobi/solver.hpp"

namespace imbrex::apps::jacobi {

std::unique_ptr<Solver> cuda_solver(World&, const JacobiRequest&, std::uint32_t, std::uint32_t) {
  throw Error(ErrorCode::invalid_input, "device cuda: this build has no CUDA");
}

}  // namespace imbrex::apps::jacobi
