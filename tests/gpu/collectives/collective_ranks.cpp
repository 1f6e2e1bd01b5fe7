#include "gpu/collectives/collective_ranks.hpp"

#include "gpu/collectives/reduce_vectors.hpp"
#include "gpu/harness/gpu_case.hpp"

namespace imbrex::test {

int run_collectives(int ranks, const cuda::CollectivesOptions& options, double wait_limit, Trouble& trouble,
                    const CollectiveBody& body) {
  return on_world(ranks, {.heap_bytes = 64 << 20, .wait_limit = wait_limit}, [&](World& world) {
    cuda::CudaCollectives collectives(world, select_gpu(world), sharing(options));
    const Stream stream(world);
    body(world, collectives, stream, trouble);
    return 0;
  });
}

}  // namespace imbrex::test
