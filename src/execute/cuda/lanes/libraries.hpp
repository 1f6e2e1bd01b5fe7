// Plans with library queues on one rank's GPU: products by cuBLASLt, collectives by NCCL. No header of either is
// included here, so that builds without them differ in one source only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "execute/cuda/lanes/lane_plan.hpp"
#include "execute/cuda/lanes/stream_execution.hpp"
#include "imbrex/world.hpp"

namespace imbrex::cuda {

class CudaExecution;

/// Plans that are run one after another, whatever the order, each made ready without the other ranks. They have no
/// epoch between them: a rank's streams order its calls, collectives those of different ranks.
class LibraryTurns {
 public:
  virtual ~LibraryTurns() = default;

  /// What a collective of the plan needs that only all ranks together could make, in words, the same on every rank;
  /// empty if it needs nothing.
  virtual std::string lacks(const Plan& plan) const = 0;

  /// Not collective; the device is selected, and the lock of the calls held. The plan has no kernel and lacks nothing.
  /// Waits until this rank's calls are over. What is made stays until its last call is over, when its last
  /// owner has dropped it; where a graph may hold its calls, as long as this.
  virtual std::shared_ptr<Execution> prepare(LanePlan lanes) = 0;
};

/// What the executions of one executor share: NCCL's communicators and cuBLASLt's handle.
class Libraries {
 public:
  virtual ~Libraries() = default;

  /// Collective. `kernel` runs the plan's compute tasks; null where there are none (lanes/lane_execution.hpp). Returns
  /// when every kernel has run once.
  virtual std::unique_ptr<StreamExecution> prepare(LanePlan lanes, std::unique_ptr<CudaExecution> kernel,
                                                   const CudaOptions& options) = 0;

  /// Collective: for plans that need what `plans` need, of which every step runs once; none has a kernel. The same for
  /// all plans: they take turns.
  virtual std::shared_ptr<LibraryTurns> take_turns(std::vector<LanePlan> plans, const CudaOptions& options) = 0;
};

/// Collective; the device is selected, `calls` outlives what is made. Where more than one rank has a GPU, ranks are
/// processes. Throws Error(runtime_failure) naming the library
/// that cannot be loaded, and Error(invalid_input) in a build without them.
std::shared_ptr<Libraries> make_libraries(World& world, StreamCalls& calls, int device, int ranks_per_gpu);

}  // namespace imbrex::cuda
