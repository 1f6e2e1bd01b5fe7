// The GPUs of a world, for all its operators.
#pragma once

#include <memory>
#include <string>

#include "imbrex/execute.hpp"
#include "imbrex/world.hpp"

namespace imbrex {

struct WorldGpus {
  std::string refusal;  ///< why the ranks cannot have a GPU each, the same on all; empty if they can
  std::string gpu;      ///< name of rank 0's
  CudaOptions options;
  std::unique_ptr<Executor> executor;  ///< null where refused
};

/// Collective. Made by the first call and kept with the world. Throws Error(invalid_input) for `options` that are
/// neither default nor those of the first call, and Error(runtime_failure) as make_cuda_executor.
std::shared_ptr<WorldGpus> gpus_of(World& world, const CudaOptions& options);

}  // namespace imbrex
