#include "imbrex/ops.hpp"

namespace imbrex {

AllGatherGemm::AllGatherGemm(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(
          world,
          {Operator::all_gather_gemm, shape.m, shape.n, shape.k, world.size(), shape.type, shape.bias, shape.scales},
          options) {}

}  // namespace imbrex
