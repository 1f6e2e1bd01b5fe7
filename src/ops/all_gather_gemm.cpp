#include "imbrex/ops.hpp"
#include "ops/gemm_problem.hpp"

namespace imbrex {

AllGatherGemm::AllGatherGemm(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, ops::problem_of(Operator::all_gather_gemm, shape, world.size()), options) {}

}  // namespace imbrex
