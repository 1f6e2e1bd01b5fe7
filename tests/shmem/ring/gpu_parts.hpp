// What the ring's CUDA sources do for its test on GPUs.
#pragma once

#include "shmem/litmus.hpp"
#include "shmem/suite.hpp"

namespace imbrex::shmem::test {

std::vector<Case> calls_on_gpu_ring();
std::vector<Case> moves_on_gpu_ring();

/// As run_litmus.
std::uint64_t run_litmus_on_gpu_ring(Bench& bench, Litmus what, std::uint64_t rounds, bool own);

/// PE 0 posts what no ring may hold; all wait for a signal that never comes.
void queue_hostile(Heap& heap, CudaStream stream, Signal* signal);

/// By one thread, `rounds` times: a put that was registered goes to the next PE, and the one from the PE before is
/// waited for. `wrong` counts what did not come whole.
void queue_registered(Heap& heap, CudaStream stream, std::uint32_t number, const std::uint64_t* landing,
                      std::uint64_t* source, std::uint32_t words, Signal* signals, std::uint64_t rounds,
                      std::uint64_t* wrong);

}  // namespace imbrex::shmem::test
