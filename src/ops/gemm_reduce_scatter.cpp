#include "imbrex/ops.hpp"

namespace imbrex {

GemmReduceScatter::GemmReduceScatter(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, Operator::gemm_reduce_scatter, shape, options) {}

}  // namespace imbrex
