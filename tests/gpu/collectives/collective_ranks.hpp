// Collectives of Imbrex' own on a GPU for each rank, and what goes wrong there.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/cuda/cuda_collectives.hpp"
#include "execute/cuda/lanes/graph.hpp"
#include "gpu/harness/ranks.hpp"
#include "imbrex/world.hpp"

namespace imbrex::test {

using CollectiveBody = std::function<void(World&, cuda::CudaCollectives&, cudaStream_t, Trouble&)>;

/// Returns on_world's code.
int run_collectives(int ranks, const cuda::CollectivesOptions& options, double wait_limit, Trouble& trouble,
                    const CollectiveBody& body);

/// Makes ready for a call on this rank, and returns the call, which keeps what it needs.
using CallMaker = std::function<std::function<void()>(World&, cuda::CudaCollectives&, cudaStream_t)>;

/// Rank 1 of two never calls: both end, each with a message that names what rank 0 waited for and has `parts`.
void expect_waits_end(const CallMaker& ready, const std::vector<std::string>& parts);

/// Replays a graph of calls, one for each case: 20 times 100 replays, between which each of `objects` is filled and
/// says what it finds wrong.
template <typename Case, typename Object>
void replay(const cuda::Graph& graph, cuda::CudaCollectives& collectives, cudaStream_t stream,
            const std::vector<Case>& cases, const std::vector<std::unique_ptr<Object>>& objects, Trouble& trouble) {
  for (int round = 0; round < 20; ++round) {
    for (const auto& object : objects) object->fill();
    for (int i = 0; i < 100; ++i) graph.launch(stream);
    collectives.finish(stream);
    for (std::size_t i = 0; i < cases.size(); ++i)
      if (const std::string fault = objects[i]->fault(); !fault.empty())
        trouble.add(cases[i].text() + " round " + std::to_string(round) + ": " + fault);
  }
}
}  // namespace imbrex::test
