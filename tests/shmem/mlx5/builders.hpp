// Ways to issue a put, to be compared: in SASS by builders_test.py, in time by issue_bench.cu.
#pragma once

#include "apps/nic/queue.hpp"

namespace imbrex::shmem::mlx5::test {

enum class Builder {
  filled,  ///< what changes, into a request that the CPU prepared
  whole,   ///< every field, 16 bytes a store
  words    ///< every field, 4 bytes a store
};

/// Keys and numbers come from memory, as they do for kernels that talk to many peers.
template <Builder builder, Reach reach>
IMBREX_DEVICE void issue(Queue& queue, const Fixed& fixed, const Moving& moving) {
  const std::uint32_t index = queue.posted;
  Request& slot = queue.ring[index & queue.mask];
  queue.posted = index + 1;
  std::uint32_t first;
  if constexpr (builder == Builder::filled) {
    first = fill<Verb::write>(slot, index, moving);
  } else if constexpr (builder == Builder::whole) {
    first = build<Verb::write>(slot, index, fixed, moving);
  } else {
    Request request;
    first = build<Verb::write>(request, index, fixed, moving);
    for (int segment = 0; segment < 3; ++segment)
      for (int word = 0; word < 4; ++word)
        words::store(&slot.segment[segment].word[word], request.segment[segment].word[word]);
  }
  ring_doorbell<Verb::write, reach>(queue, first);
}

}  // namespace imbrex::shmem::mlx5::test
