// The kernel of a joint (lanes/lane_plan.hpp): one warp on a library lane that posts for the step before it and waits
// for the one behind it.
//
// Epoch. Joints count among the epoch's readers, and each reads it once, as the kernel's blocks do. So it is not
// advanced before all of them have begun, and captured graphs replay without help.
//
// Failure. Where some wait of the rank was given up, what stands behind a joint on its stream must not run: peers would
// take what a collective brings for a result. So the joint stays until the host has ended the libraries' collectives,
// and says so. Where no host does, it ends the process' use of the GPU.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "execute/cuda/tables/table.hpp"

namespace imbrex::cuda {

/// In host memory that the device writes, but for `ended`.
struct LaneRecord {
  volatile std::uint64_t under_way;  ///< of each step that began: see step_word; 0: none has
  volatile std::uint32_t ended;      ///< the host's word that libraries run nothing more
};

/// Names a step of an epoch, or with 0 that none is under way; epochs wrap.
constexpr std::uint64_t step_word(std::uint64_t epoch, std::uint32_t step_and_one) {
  return epoch << 24 | (step_and_one & 0xffffff);
}

struct JointArgs {
  Protocol protocol;
  const WaitEntry* waits;
  const PostEntry* posts;
  LaneRecord* record;
  std::uint32_t tells;  ///< 1: of the lane whose steps are written down there
  std::uint32_t wait_count, post_count;
  std::uint32_t arrivals;      ///< readers of the epoch that must have come: the blocks of the kernel; 0: nobody
  std::uint32_t queue, task;   ///< in the plan, of the step behind it or the last one, for messages
  std::uint32_t step_and_one;  ///< that is under way behind it; 0: none
};

cudaError_t launch_joint(const JointArgs& args, cudaStream_t stream);

/// Loads the kernel.
cudaError_t load_joint();

}  // namespace imbrex::cuda
