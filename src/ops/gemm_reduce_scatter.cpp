#include "imbrex/ops.hpp"
#include "ops/gemm_problem.hpp"

namespace imbrex {

GemmReduceScatter::GemmReduceScatter(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, ops::problem_of(Operator::gemm_reduce_scatter, shape, world.size()), options) {}

}  // namespace imbrex
