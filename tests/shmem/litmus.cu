#include "shmem/gpu_parts.hpp"
#include "shmem/litmus_runs.hpp"
#include "shmem/reordering.hpp"

namespace imbrex::shmem::test {

std::uint64_t run_litmus_on_gpu(Bench& bench, Litmus what, std::uint64_t rounds, bool ordered, bool reordering) {
  return reordering ? run_litmus<Reordering<LoadStore>>(bench, what, rounds, ordered)
                    : run_litmus<LoadStore>(bench, what, rounds, ordered);
}

}  // namespace imbrex::shmem::test
