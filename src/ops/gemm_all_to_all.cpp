#include "imbrex/ops.hpp"
#include "ops/gemm_problem.hpp"

namespace imbrex {

GemmAllToAll::GemmAllToAll(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, ops::problem_of(Operator::gemm_all_to_all, shape, world.size()), options) {}

}  // namespace imbrex
