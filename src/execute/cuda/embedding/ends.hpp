// The two ends of a lookup together with peers: small kernels before and after it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "imbrex/device/protocol.hpp"

namespace imbrex::cuda {

/// Faults of the protocol: what was waited for.
enum class LookUpFault : std::uint32_t {
  entered,  ///< place[0]: the rank that did not enter the epoch
  arrived,  ///< place[0]: the slice whose posts did not come
};

struct EndsArgs {
  device::Group group;  ///< readers are the lookup's blocks, or 1 where this rank looks nothing up
  std::byte* entered;   ///< a word for each rank, in symmetric memory: epochs that this rank has let it into
  std::byte* done;      ///< a word for each slice of this rank's rows: posts of the peers
  std::uint64_t step;   ///< bytes from word to word
  std::uint32_t slices;
  std::uint32_t posts;  ///< to each slice in an epoch
  bool advances;        ///< no other kernel reads the epoch
};

/// Lets all peers into this epoch: what the stream did with the output before is over.
cudaError_t launch_enter(const EndsArgs& args, cudaStream_t stream);

/// Waits until all that peers store is there. Behind the lookup.
cudaError_t launch_arrive(const EndsArgs& args, cudaStream_t stream);

/// Loads both.
cudaError_t load_ends();

}  // namespace imbrex::cuda
