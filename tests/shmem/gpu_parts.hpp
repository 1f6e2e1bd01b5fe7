// What the suite's CUDA sources do for its test on GPUs.
#pragma once

#include <cstdint>

#include "shmem/litmus.hpp"
#include "shmem/suite.hpp"

namespace imbrex::shmem::test {

/// As run_litmus, on the transport that there is, or the one that reorders.
std::uint64_t run_litmus_on_gpu(Bench& bench, Litmus what, std::uint64_t rounds, bool ordered, bool reordering);

/// As misuse.hpp says, of kernels of a checked build.
void run_misuse_on_gpu(Heap& heap, CudaStream stream, int what, std::uint64_t* box);
const char* misuse_words_of(int what);
int misuses_on_gpu();

/// Kernels for a graph: a ring of put_signal, a barrier, a sum of all PEs. Nothing in a launch changes from replay to
/// replay.
struct Replayed {
  std::uint64_t round;  ///< replays that have begun
  std::uint64_t wrong;  ///< what was not as it should be
  Signal signal;
  std::uint64_t unused[5];
  std::uint64_t sent[64], came[64];
  std::int64_t part[64], sum[64];
};
void queue_replayed(Heap& heap, CudaStream stream, Replayed* own);

/// Waits for a signal that never comes: on PEs other than `absent`.
void queue_lonely(Heap& heap, CudaStream stream, Signal* signal);

}  // namespace imbrex::shmem::test
