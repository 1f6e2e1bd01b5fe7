#include "execute/cuda/work_on_gpu.hpp"

#include <fmt/format.h>

#include "execute/cuda/embedding/bags_on_gpu.hpp"

namespace imbrex::cuda {

const WorkOnGpu* work_on_gpu(WorkKind kind) {
  static const WorkOnGpu all[] = {bags_on_gpu()};
  for (const WorkOnGpu& each : all)
    if (each.kind == kind) return &each;
  return nullptr;
}

std::string refusal_of_block(const Plan& plan, int rank, const Block& block) {
  const WorkOnGpu* known = work_on_gpu(block.kind);
  if (known == nullptr) return fmt::format("the CUDA executor runs no work of kind {}", name_of(block.kind));
  return known->refusal(plan, rank, block);
}

}  // namespace imbrex::cuda
