#include "gpu/collective_ranks.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "gpu/gpu_case.hpp"
#include "gpu/reduce_vectors.hpp"

namespace imbrex::test {

void Trouble::add(const std::string& what) {
  const std::lock_guard guard(lock);
  list.push_back(what);
}

int run_collectives(int ranks, const cuda::CollectivesOptions& options, double wait_limit, Trouble& trouble,
                    const CollectiveBody& body) {
  return run_threads(ranks, {.heap_bytes = 64 << 20, .wait_limit = wait_limit}, [&](World& world) {
    cuda::CudaCollectives collectives(world, select_gpu(world), sharing(options));
    const Stream stream(world);
    body(world, collectives, stream, trouble);
    return 0;
  });
}

void expect_none(int code, const Trouble& trouble) {
  EXPECT_EQ(code, 0);
  for (std::size_t i = 0; i < std::min<std::size_t>(trouble.list.size(), 12); ++i) ADD_FAILURE() << trouble.list[i];
}

}  // namespace imbrex::test
