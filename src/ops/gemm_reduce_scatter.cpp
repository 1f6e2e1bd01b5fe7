#include "imbrex/ops.hpp"

namespace imbrex {

GemmReduceScatter::GemmReduceScatter(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world,
                   {Operator::gemm_reduce_scatter, shape.m, shape.n, shape.k, world.size(), shape.type, shape.bias,
                    shape.scales},
                   options) {}

}  // namespace imbrex
