// Which of the compiled kernels runs a plan. Pure host code: what must be known of the GPU, it is told.
#pragma once

#include <functional>
#include <vector>

#include "execute/cuda/products/kernel_variant.hpp"
#include "execute/cuda/tables/table_survey.hpp"
#include "imbrex/advanced/execute.hpp"

namespace imbrex::cuda {

/// The kernels that there are, and what a GPU makes of them.
struct Kernels {
  std::vector<const KernelVariant*> tensor_core;  ///< of equally fast ones, the first is chosen
  const KernelVariant* plain = nullptr;           ///< of the plan's type; for what none of those takes
  int generation = 0;                             ///< of the GPU: the major number of its compute capability

  /// Clusters that run at once on the whole GPU; 0: the kernel does not run there. Asked only for kernels that may be
  /// chosen, since the answer may take the driver seconds.
  std::function<int(const KernelVariant&)> workers;
};

/// Whether the options let a GPU of that generation run the kernel; the workers of other kernels are not counted.
bool asked_for(const KernelVariant& kernel, int generation, const CudaOptions& options);

/// Clusters of one rank, of `all` that run at once, where so many ranks share the GPU and its plan keeps `kept_free`
/// SMs free.
int workers_of_rank(const KernelVariant& kernel, int all, int ranks_per_gpu, int kept_free = 0);

/// Tiles that would run next to an idle block of the kernel's: of so many, in queues of that mode.
std::size_t count_beside_idle(const TileShape& shape, const TileCounts& tiles, ClusterMode cluster);

/// The kernel that computes a rank's part, of so many tiles, in the fewest full waves, of those that its tiles fit and
/// whose name has `options.kernel` in it; the cluster modes of the plan's queues say whether its blocks share B or K.
/// `frame` is that of the survey. No table is made. Throws Error(invalid_input) where no kernel does, and where ranks
/// that share a GPU would need copy engines.
const KernelVariant& choose_kernel(const Plan& frame, const TableSurvey& survey, const TileCounts& tiles,
                                   const Kernels& kernels, const CudaOptions& options);

}  // namespace imbrex::cuda
