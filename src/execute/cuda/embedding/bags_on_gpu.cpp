#include "execute/cuda/embedding/bags_on_gpu.hpp"

#include "execute/cuda/embedding/bag_launches.hpp"
#include "plan/bags.hpp"

namespace imbrex::cuda {
namespace {

std::unique_ptr<BlockLaunches> make(const LaunchPlace& place, const std::vector<BlockLaunch>& launches) {
  return std::make_unique<BagLaunches>(place, launches);
}

}  // namespace

WorkOnGpu bags_on_gpu() { return {plan::bags_kind, "lookup", "look_up", refusal_of_bags, bag_launches, make}; }

}  // namespace imbrex::cuda
