// Ranks that get results, for tests of posts.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "imbrex/device/protocol.hpp"

namespace imbrex::test {

/// One rank's, in an epoch: each of `slices` blocks waits until all ranks have posted a slice, compares it with what it
/// has to be, overwrites it, and tells all ranks that they may store again.
struct Reader {
  device::Group group;  // its readers are the blocks
  std::byte* part;      // [rows, row_bytes]
  const std::byte* wanted;
  std::uint32_t rows, slice_rows, row_bytes;
  const std::uint32_t* done;  // [slices]
  std::uint32_t posts;        // of a slice in an epoch
  std::uint32_t* entered[8];  // one of each rank, for this one
  std::uint32_t ranks;
  unsigned long long* faults;  // bytes that were not as needed
};

cudaError_t launch_reader(const Reader& reader, cudaStream_t stream);

}  // namespace imbrex::test
