#include "imbrex/ops.hpp"

namespace imbrex {

GemmAllToAll::GemmAllToAll(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, Operator::gemm_all_to_all, shape, options) {}

}  // namespace imbrex
