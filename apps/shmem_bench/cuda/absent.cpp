#include "apps/shmem_bench/place.hpp"
#include "imbrex/error.hpp"

namespace imbrex::apps {

ShmemSample sample_on_gpu(shmem::Heap&, const ShmemCase&, const ShmemPlace&, const ShmemTurn&) {
  throw Error(ErrorCode::invalid_input, "this build has no CUDA");
}

}  // namespace imbrex::apps
