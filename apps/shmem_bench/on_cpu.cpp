#include "apps/shmem_bench/kernels.hpp"

namespace imbrex::apps {

ShmemSample sample_on_cpu(shmem::Heap& heap, const ShmemCase& one, const ShmemPlace& place, const ShmemTurn& turn) {
  return take_sample(heap, one, place, turn);
}

}  // namespace imbrex::apps
