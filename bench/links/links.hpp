// Ways to move bytes to all other GPUs at once.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace imbrex::bench {

enum class Way { stores, relaxed_stores, copies, stores_and_clears, bulk, loads, both };

struct LinkArgs {
  std::byte* first;             ///< rank 0's memory
  std::uint64_t stride, bytes;  ///< of a region; region s of a rank is what rank s moves
  std::uint32_t rank, ranks;
  Way way;
  std::uint64_t window;  ///< bytes that go to one peer before the next one's turn; 0: as little as blocks move at once
  std::uint32_t* sink;
};

cudaError_t launch_links(const LinkArgs& args, unsigned blocks);

}  // namespace imbrex::bench
