// The operators with a GEMM, by their names: what differs between them, the problem's descriptor says.
#include <fmt/format.h>

#include "imbrex/error.hpp"
#include "imbrex/ops.hpp"

namespace imbrex {

AllGatherGemm::AllGatherGemm(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, Operator::all_gather_gemm, shape, options) {}

GemmReduceScatter::GemmReduceScatter(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, Operator::gemm_reduce_scatter, shape, options) {}

GemmAllReduce::GemmAllReduce(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, Operator::gemm_all_reduce, shape, options) {}

GemmAllToAll::GemmAllToAll(World& world, const GemmShape& shape, const OperatorOptions& options)
    : GemmOperator(world, Operator::gemm_all_to_all, shape, options) {}

std::unique_ptr<GemmOperator> make_operator(World& world, Operator op, const GemmShape& shape,
                                            const OperatorOptions& options) {
  switch (op) {
    case Operator::all_gather_gemm: return std::make_unique<AllGatherGemm>(world, shape, options);
    case Operator::gemm_reduce_scatter: return std::make_unique<GemmReduceScatter>(world, shape, options);
    case Operator::gemm_all_reduce: return std::make_unique<GemmAllReduce>(world, shape, options);
    case Operator::gemm_all_to_all: return std::make_unique<GemmAllToAll>(world, shape, options);
  }
  throw Error(ErrorCode::invalid_input,
              fmt::format("operator {}: it multiplies no matrices, and has a class of its own", name_of(op)));
}

}  // namespace imbrex
