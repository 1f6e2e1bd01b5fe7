// A kernel whose puts are templates of the host's: each is one slot, with the signal's value in it.
#pragma once

#include "imbrex/device/shmem.cuh"
#include "imbrex/device/shmem/ring/transport.hpp"

namespace imbrex::shmem::test {

/// `signals`: what comes, and what the PE before is told: that its words were read.
IMBREX_KERNEL pass_registered(Handle handle, std::uint32_t number, const std::uint64_t* landing, std::uint64_t* source,
                              std::uint32_t words, Signal* signals, std::uint64_t rounds, std::uint64_t* wrong) {
  if (block_index() != 0 || !is_leader(Block{})) return;
  Context<OwnRing> context(handle);
  const std::uint32_t pes = context.pes(), next = (context.pe() + 1) % pes, before = (context.pe() + pes - 1) % pes;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    for (std::uint32_t i = 0; i < words; ++i) source[i] = round * 1000 + i;
    context.transport().put_registered(handle, number, round, next);
    if (!context.signal_wait_until(signals, Compare::greater_equal, round)) return;
    for (std::uint32_t i = 0; i < words; ++i)
      if (landing[i] != round * 1000 + i) ++*wrong;
    context.signal_set(signals + 1, round, before);
    if (!context.signal_wait_until(signals + 1, Compare::greater_equal, round)) return;
  }
}

}  // namespace imbrex::shmem::test
