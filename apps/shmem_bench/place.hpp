// What a sample of the benchmark of OpenSHMEM calls is given, and what it gives.
#pragma once

#include "apps/shmem_bench/cases.hpp"
#include "imbrex/shmem.hpp"

namespace imbrex::apps {

/// When a block's calls began, had returned, and were complete, in nanoseconds of device::now_ns; and what they took to
/// return, in cycles.
struct ShmemSpan {
  std::uint64_t begin, returned, end, cycles;
};

/// In the symmetric heap. What comes for each block lies `apart` elements from the next one's.
struct ShmemPlace {
  static constexpr std::uint32_t apart = 16;
  std::uint64_t *to, *from;
  std::uint64_t* from_peer;  ///< one: what the first word is that the peer sends
  shmem::Signal* signals;
  shmem::Packet<std::uint64_t>* packets;
  std::uint64_t *echo, *counter;  ///< one each, that PEs wait for in turn
  std::uint64_t* scratch;         ///< that peers add to
  ShmemSpan* spans;               ///< of each block, side by side
};

struct ShmemTurn {
  std::uint64_t before;  ///< signals or additions so far
  std::uint32_t calls, warm;
  std::uint32_t peer;
  bool leads;
};

/// A call's, all blocks together.
struct ShmemSample {
  double seconds, cycles;
};

ShmemSample sample_on_cpu(shmem::Heap& heap, const ShmemCase& one, const ShmemPlace& place, const ShmemTurn& turn);

/// Throws Error(invalid_input) in a build without CUDA.
ShmemSample sample_on_gpu(shmem::Heap& heap, const ShmemCase& one, const ShmemPlace& place, const ShmemTurn& turn);

}  // namespace imbrex::apps
