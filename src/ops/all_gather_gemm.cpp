#include "imbrex/ops.hpp"

namespace imbrex {

AllGatherGemm::AllGatherGemm(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, Operator::all_gather_gemm, shape, options) {}

}  // namespace imbrex
