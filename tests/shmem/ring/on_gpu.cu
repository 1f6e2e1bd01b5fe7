#include "imbrex/shmem.hpp"
#include "shmem/litmus_runs.hpp"
#include "shmem/ring/gpu_parts.hpp"
#include "shmem/ring/registered.hpp"

namespace imbrex::shmem::test {
namespace {

IMBREX_KERNEL post_hostile(Handle handle, Signal* signal) {
  Context<Ring> context(handle);
  if (context.pe() == 0) context.transport().put_registered(handle, 5000, 1, 0);
  context.signal_wait_until(signal, Compare::equal, 1);
}

}  // namespace

std::uint64_t run_litmus_on_gpu_ring(Bench& bench, Litmus what, std::uint64_t rounds, bool own) {
  return own ? run_litmus<OwnRing>(bench, what, rounds, true) : run_litmus<Ring>(bench, what, rounds, true);
}

void queue_hostile(Heap& heap, CudaStream stream, Signal* signal) {
  launch(heap, {.stream = stream}, post_hostile, heap.handle(), signal);
}

void queue_registered(Heap& heap, CudaStream stream, std::uint32_t number, const std::uint64_t* landing,
                      std::uint64_t* source, std::uint32_t words, Signal* signals, std::uint64_t rounds,
                      std::uint64_t* wrong) {
  launch(heap, {.stream = stream}, pass_registered, heap.handle(), number, landing, source, words, signals, rounds,
         wrong);
}

}  // namespace imbrex::shmem::test
