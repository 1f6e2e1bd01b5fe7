#include "imbrex/ops.hpp"

namespace imbrex {

GemmAllReduce::GemmAllReduce(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(
          world,
          {Operator::gemm_all_reduce, shape.m, shape.n, shape.k, world.size(), shape.type, shape.bias, shape.scales},
          options) {}

}  // namespace imbrex
