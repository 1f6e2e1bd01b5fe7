// Collectives of Imbrex' own on a GPU for each rank, and what goes wrong there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/cuda/cuda_collectives.hpp"
#include "imbrex/world.hpp"

namespace imbrex::test {

/// What went wrong, on any rank.
struct Trouble {
  std::mutex lock;
  std::vector<std::string> list;
  void add(const std::string& what);
};

using CollectiveBody = std::function<void(World&, cuda::CudaCollectives&, cudaStream_t, Trouble&)>;

/// Ranks are threads; returns run_threads' code.
int run_collectives(int ranks, const cuda::CollectivesOptions& options, double wait_limit, Trouble& trouble,
                    const CollectiveBody& body);

/// Fails for a code, and for the first of what went wrong.
void expect_none(int code, const Trouble& trouble);

}  // namespace imbrex::test
