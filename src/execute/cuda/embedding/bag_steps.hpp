// Lookups among the steps of a plan with library queues, on one rank's GPU.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "embedding/cuda/cuda_look_up.hpp"
#include "execute/cuda/work_on_gpu.hpp"

namespace imbrex::cuda {

class BagSteps final : public BlockSteps {
 public:
  /// As WorkOnGpu::make_steps.
  BagSteps(const Plan& plan, int rank, std::int64_t pitch);

  void launch(const Block& block, void* to, const Addresses& operands, CudaStream stream) override;
  std::int64_t take_misfits(Misfits misfits, CudaStream stream) override;

 private:
  std::unique_ptr<embedding::CudaLookUp> look_up_;
  std::vector<embedding::Table> tables_;  // without addresses; columns are the workspace's
  std::vector<embedding::Table> bound_;
  bool captured_ = false;
};

}  // namespace imbrex::cuda
