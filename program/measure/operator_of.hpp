// Operators on GPUs that run what a measurement says.
#pragma once

#include <memory>
#include <vector>

#include "imbrex/ops.hpp"
#include "imbrex/world.hpp"
#include "program/operand_memory.hpp"

namespace imbrex::program {

/// The operator that runs the plan as it stands, sound or not: what is measured may lack its collectives. Throws as
/// make_operator.
std::unique_ptr<GemmOperator> operator_of(World& world, Plan plan, const CudaOptions& options);

/// The operator of the problem that runs make_plan's plan. Ranks make no more of it than their own part.
std::unique_ptr<GemmOperator> operator_of(World& world, const Problem& problem, Strategy strategy, const Knobs& knobs,
                                          const CudaOptions& options);

/// The memory's operands as this operator takes them: of another problem than the memory's it has as many bytes each.
std::vector<Operand> operands_for(const GemmOperator& op, OperandMemory& memory);

}  // namespace imbrex::program
