#include "imbrex/error.hpp"
#include "jobs/shmem_bench/place.hpp"

namespace imbrex::jobs {

ShmemSample sample_on_gpu(shmem::Heap&, const ShmemCase&, const ShmemPlace&, const ShmemTurn&) {
  throw Error(ErrorCode::invalid_input, "this build has no CUDA");
}

}  // namespace imbrex::jobs
