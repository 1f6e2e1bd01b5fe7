// Plans with library queues on one rank's GPU: products by cuBLASLt, collectives by NCCL. No header of either is
// included here, so that builds without them differ in one source only.
#pragma once

#include <memory>

#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/lanes/stream_execution.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cuda {

class CudaExecution;

/// What the executions of one executor share: NCCL's communicators and cuBLASLt's handle.
class Libraries {
 public:
  virtual ~Libraries() = default;

  /// Collective. `kernel` runs the plan's compute tasks; null where there are none (lanes/lane_execution.hpp). Returns
  /// when every kernel has run once.
  virtual std::unique_ptr<StreamExecution> prepare(LanePlan lanes, std::unique_ptr<CudaExecution> kernel,
                                                   const CudaOptions& options) = 0;
};

/// Collective; the device is selected, `calls` outlives what is made. Where more than one rank has a GPU, ranks are
/// processes. Throws Error(runtime_failure) naming the library
/// that cannot be loaded, and Error(invalid_input) in a build without them.
std::shared_ptr<Libraries> make_libraries(World& world, StreamCalls& calls, int device, int ranks_per_gpu);

}  // namespace imbrex::cuda
