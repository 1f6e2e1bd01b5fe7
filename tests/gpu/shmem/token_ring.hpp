// What token_ring.cu does, for its test.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "imbrex/device/memory.hpp"

namespace imbrex::test {

/// Each rank has one in symmetric memory.
struct Box {
  std::uint64_t token;
  std::uint32_t came;  ///< how often
};

/// Queues a kernel that passes the token around so many times, in each call as many. Every visit adds one to it.
cudaError_t pass_token(const device::Group& group, Box* own, std::uint32_t laps, cudaStream_t stream);

/// Loads the kernel: loading one after a kernel that waits for a peer can stop that peer.
cudaError_t load_pass_token();

}  // namespace imbrex::test
