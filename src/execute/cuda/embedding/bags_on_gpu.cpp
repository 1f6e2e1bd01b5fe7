#include "execute/cuda/embedding/bags_on_gpu.hpp"

#include "execute/cuda/embedding/bag_steps.hpp"
#include "execute/cuda/embedding/look_up_execution.hpp"
#include "execute/cuda/embedding/look_up_plan.hpp"
#include "plan/bags.hpp"

namespace imbrex::cuda {
namespace {

std::unique_ptr<Execution> make_execution(const ExecutionPlace& place, const Plan& plan) {
  return std::make_unique<LookUpExecution>(place.world, place.heap, place.calls, place.faults, place.device, plan,
                                           place.options);
}

std::unique_ptr<BlockSteps> make_steps(const Plan& plan, int rank, std::int64_t pitch) {
  return std::make_unique<BagSteps>(plan, rank, pitch);
}

}  // namespace

WorkOnGpu bags_on_gpu() { return {plan::bags_kind, expect_look_ups, make_execution, refusal_of_bags, make_steps}; }

}  // namespace imbrex::cuda
