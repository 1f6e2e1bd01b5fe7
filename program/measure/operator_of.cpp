#include "program/measure/operator_of.hpp"

#include <utility>

#include "ops/gemm_request.hpp"
#include "plan/problem.hpp"

namespace imbrex::program {

std::unique_ptr<GemmOperator> operator_of(World& world, Plan plan, const CudaOptions& options) {
  OperatorOptions of{.device = Device::cuda, .cuda = options};
  GemmShape shape = ops::shape_of(plan.problem);
  shape.packed = plan::is_packed(plan.problem);
  const Operator op = plan.problem.op;
  of.plan = std::make_shared<const Plan>(std::move(plan));
  return make_operator(world, op, shape, of);
}

std::unique_ptr<GemmOperator> operator_of(World& world, const Problem& problem, Strategy strategy, const Knobs& knobs,
                                          const CudaOptions& options) {
  return make_operator(world, problem.op, ops::shape_of(problem),
                       {.strategy = strategy, .knobs = knobs, .device = Device::cuda, .cuda = options});
}

std::vector<Operand> operands_for(const GemmOperator& op, OperandMemory& memory) {
  std::vector<Operand> operands = memory.named();
  for (Operand& operand : operands) operand = op.operand(operand.name, operand.view.data);
  return operands;
}

}  // namespace imbrex::program
