#include "imbrex/ops.hpp"

namespace imbrex {

GemmAllReduce::GemmAllReduce(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, Operator::gemm_all_reduce, shape, options) {}

}  // namespace imbrex
