// Lookups among the steps of a plan with library queues, on one rank's GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "embedding/cuda/cuda_look_up.hpp"
#include "imbrex/advanced/execute.hpp"
#include "imbrex/plan.hpp"

namespace imbrex::cuda {

class BagSteps {
 public:
  /// Takes memory, and loads the kernels. The device is selected. `pitch`: elements from row to row of the workspace
  /// that blocks store to.
  BagSteps(const Plan& plan, int rank, std::int64_t pitch);

  /// Queues a block that refusal_of_bags takes; `to` is where its store begins.
  void launch(const Block& block, void* to, const Addresses& operands, cudaStream_t stream);

  /// As FindsMisfits::take_misfits, of blocks that are over or on `stream`.
  std::int64_t take_misfits(cudaStream_t stream, Misfits misfits);

 private:
  std::unique_ptr<embedding::CudaLookUp> look_up_;
  std::vector<embedding::Table> tables_;  // without addresses; columns are the workspace's
  std::vector<embedding::Table> bound_;
  embedding::Bags bags_{};  // of the last block
  bool captured_ = false;
};

}  // namespace imbrex::cuda
