// What NVLink carries between GPUs, all ranks to all others at once, by the way of moving the bytes. The ceiling of
// every collective here: a rank's payload per second in one direction, slowest rank.
//
//   link_bench [ranks [megabytes to each peer]]
#include "links/links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <vector>

#include "imbrex/error.hpp"
#include "imbrex/gpu.hpp"
#include "imbrex/world.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/cuda_heap.hpp"
#include "runtime/cuda/device.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::bench {
namespace {

// What moves the bytes: a kernel, copy engines, or both at once, all of the bytes each.
struct Mover {
  const char* name;
  std::optional<Way> kernel;
  bool engines = false;
};

constexpr Mover movers[] = {
    {"stores", Way::stores},
    {"relaxed stores", Way::relaxed_stores},
    {"loads of local memory, stores", Way::copies},
    {"relaxed stores, and as many local ones", Way::stores_and_clears},
    {"bulk copies from shared memory", Way::bulk},
    {"loads from peers", Way::loads},
    {"half stores, half loads from peers", Way::both},
    {"copy engines", {}, true},
    {"loads and stores beside copy engines", Way::copies, true},
};

// Copy engines take one peer after the other, each rank its next one first, so that no rank receives from two at a
// time.
void copy(const LinkArgs& a, cudaStream_t stream) {
  for (std::uint32_t i = 1; i < a.ranks; ++i) {
    const std::uint32_t peer = (a.rank + i) % a.ranks;
    IMBREX_CUDA_TRY(cudaMemcpyAsync(a.first + peer * a.stride + a.rank * a.bytes,
                                    a.first + a.rank * a.stride + peer * a.bytes, a.bytes, cudaMemcpyDefault, stream));
  }
}

int run(World& world, std::uint64_t bytes) {
  const int device = runtime::select_device(world);
  runtime::CudaHeap heap(world, device, bytes * static_cast<std::uint64_t>(world.size()));
  const cuda::RawMemory sink = cuda::raw_memory(256);
  cudaEvent_t begin{}, end{};
  IMBREX_CUDA_TRY(cudaEventCreate(&begin));
  IMBREX_CUDA_TRY(cudaEventCreate(&end));
  cudaEvent_t forked{}, joined{};
  cudaStream_t side{};
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&forked, cudaEventDisableTiming));
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&joined, cudaEventDisableTiming));
  IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
  LinkArgs a{heap.handle().at(0, 0),
             heap.handle().stride,
             bytes,
             static_cast<std::uint32_t>(world.rank()),
             static_cast<std::uint32_t>(world.size()),
             Way::stores,
             0,
             static_cast<std::uint32_t*>(sink.get())};
  const auto move = [&](const Mover& mover, unsigned blocks) {
    if (!mover.kernel) return copy(a, nullptr);
    if (mover.engines) {
      IMBREX_CUDA_TRY(cudaEventRecord(forked));
      IMBREX_CUDA_TRY(cudaStreamWaitEvent(side, forked));
      copy(a, side);
      IMBREX_CUDA_TRY(cudaEventRecord(joined, side));
    }
    IMBREX_CUDA_TRY(launch_links(a, blocks));
    if (mover.engines) IMBREX_CUDA_TRY(cudaStreamWaitEvent(nullptr, joined));
  };
  constexpr int runs = 10;
  for (const Mover& mover : movers)
    for (const std::uint64_t window : {0, 1, 4, 16, 64})
      for (const unsigned blocks : {16u, 32u, 64u, 128u}) {
        const bool windowed = mover.kernel == Way::stores || mover.kernel == Way::copies || mover.kernel == Way::bulk;
        if (window != 0 && (!windowed || mover.engines)) continue;
        if (!mover.kernel && blocks != 16) continue;
        a.way = mover.kernel.value_or(Way::stores);
        a.window = window << 20;
        const double moved = static_cast<double>(bytes) * (world.size() - 1) * (mover.kernel && mover.engines ? 2 : 1);
        double best = 1e9;
        for (int round = 0; round < 4; ++round) {
          world.barrier();
          // The first launch brings the ranks together, more or less.
          move(mover, blocks);
          IMBREX_CUDA_TRY(cudaEventRecord(begin));
          for (int i = 0; i < runs; ++i) move(mover, blocks);
          IMBREX_CUDA_TRY(cudaEventRecord(end));
          move(mover, blocks);
          IMBREX_CUDA_TRY(cudaDeviceSynchronize());
          float milliseconds = 0;
          IMBREX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin, end));
          const double own = static_cast<double>(milliseconds) * 1e-3 / runs;
          std::vector<double> all(static_cast<std::size_t>(world.size()));
          world.all_gather(&own, all.data(), sizeof own);
          best = std::min(best, *std::max_element(all.begin(), all.end()));
        }
        if (world.rank() == 0) {
          fmt::print("{:>40}  {:>2} MiB in turn {:>3} blocks  {:6.1f} GB/s\n", mover.name, window, blocks,
                     moved / best * 1e-9);
          std::fflush(stdout);
        }
      }
  return 0;
}

}  // namespace
}  // namespace imbrex::bench

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 4;
  const int megabytes = argc > 2 ? std::atoi(argv[2]) : 64;
  if (ranks < 2 || ranks > 8 || megabytes < 1 || megabytes > 4096) {
    fmt::print(stderr, "usage: link_bench [ranks, 2 to 8 [megabytes to each peer, 1 to 4096]]\n");
    return 1;
  }
  if (static_cast<int>(imbrex::survey_gpus().gpus.size()) < ranks) {
    fmt::print("{} GPUs wanted\n", ranks);
    return 77;
  }
  return imbrex::run_processes(ranks, {.heap_bytes = 1 << 20, .wait_limit = 20}, [&](imbrex::World& world) {
    return imbrex::bench::run(world, static_cast<std::uint64_t>(megabytes) << 20);
  });
}
