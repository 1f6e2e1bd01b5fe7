#include "gpu/collectives/collective_ranks.hpp"

#include <algorithm>
#include <atomic>
#include <iostream>

#include "gpu/collectives/reduce_vectors.hpp"
#include "gpu/harness/gpu_case.hpp"
#include "imbrex/error.hpp"

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

void expect_waits_end(const CallMaker& ready, const std::vector<std::string>& parts) {
  Trouble trouble;
  std::atomic<bool> ended = false;
  const int code = run_collectives(
      2, {}, 0.5, trouble, [&](World& world, cuda::CudaCollectives& collectives, cudaStream_t stream, Trouble& t) {
        const std::function<void()> call = ready(world, collectives, stream);
        const std::string rank = "rank " + std::to_string(world.rank());
        try {
          if (world.rank() == 0)
            call();
          else
            while (!ended) world.throw_if_failed();
          collectives.finish(stream);
          t.add(rank + " ended well");
        } catch (const Error& error) {
          const std::string text = error.what();
          const auto said = [&](const std::string& part) { return text.find(part) != std::string::npos; };
          if (!said("rank 0 waited longer than 0.5 s in collective call 0") ||
              !std::all_of(parts.begin(), parts.end(), said))
            t.add(rank + " said: " + text);
          else if (world.rank() == 0)
            std::cout << text << '\n';
          ended = true;
          throw;
        }
      });
  EXPECT_EQ(code, 3);
  for (const std::string& line : trouble.list()) ADD_FAILURE() << line;
}

}  // namespace imbrex::test
