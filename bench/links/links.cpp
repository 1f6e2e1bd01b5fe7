// What NVLink carries between GPUs, all ranks to all others at once, by the way of moving the bytes. The ceiling of
// every collective here: a rank's payload per second in one direction, slowest rank.
//
//   link_bench [ranks [megabytes to each peer]]
#include "links/links.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <utility>
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

constexpr std::pair<Way, const char*> ways[] = {
    {Way::stores, "stores"},
    {Way::relaxed_stores, "relaxed stores"},
    {Way::copies, "loads of local memory, stores"},
    {Way::stores_and_clears, "relaxed stores, and as many local ones"},
    {Way::bulk, "bulk copies from shared memory"},
    {Way::loads, "loads from peers"},
    {Way::both, "half stores, half loads from peers"},
    {Way::engines, "copy engines"},
    {Way::beside_engines, "loads and stores beside copy engines"},
};

// A rank's moves, once. Copy engines take one peer after the other, each rank its next one first, so that nobody
// receives from two at a time; `side` has them where the GPU's own stores go on beside.
struct Mover {
  LinkArgs args;
  cudaStream_t side;
  cudaEvent_t forked, joined;

  void copy(cudaStream_t stream) const {
    for (std::uint32_t i = 1; i < args.ranks; ++i) {
      const std::uint32_t peer = (args.rank + i) % args.ranks;
      IMBREX_CUDA_TRY(cudaMemcpyAsync(args.first + peer * args.stride + args.rank * args.bytes,
                                      args.first + args.rank * args.stride + peer * args.bytes, args.bytes,
                                      cudaMemcpyDefault, stream));
    }
  }

  void operator()(Way way, std::uint64_t window, unsigned blocks) const {
    LinkArgs a = args;
    a.window = window;
    if (way == Way::engines) return copy(nullptr);
    a.way = way == Way::beside_engines ? Way::copies : way;
    if (way == Way::beside_engines) {
      IMBREX_CUDA_TRY(cudaEventRecord(forked));
      IMBREX_CUDA_TRY(cudaStreamWaitEvent(side, forked));
      copy(side);
      IMBREX_CUDA_TRY(cudaEventRecord(joined, side));
    }
    IMBREX_CUDA_TRY(launch_links(a, blocks));
    if (way == Way::beside_engines) IMBREX_CUDA_TRY(cudaStreamWaitEvent(nullptr, joined));
  }
};

int run(World& world, std::uint64_t bytes) {
  const int device = runtime::select_device(world);
  runtime::CudaHeap heap(world, device, bytes * static_cast<std::uint64_t>(world.size()));
  const cuda::RawMemory sink = cuda::raw_memory(256);
  cudaEvent_t begin{}, end{};
  IMBREX_CUDA_TRY(cudaEventCreate(&begin));
  IMBREX_CUDA_TRY(cudaEventCreate(&end));
  const LinkArgs a{heap.handle().at(0, 0),
                   heap.handle().stride,
                   bytes,
                   static_cast<std::uint32_t>(world.rank()),
                   static_cast<std::uint32_t>(world.size()),
                   Way::stores,
                   0,
                   static_cast<std::uint32_t*>(sink.get())};
  Mover move{a, nullptr, nullptr, nullptr};
  IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&move.side, cudaStreamNonBlocking));
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&move.forked, cudaEventDisableTiming));
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&move.joined, cudaEventDisableTiming));
  constexpr int runs = 10;
  for (const auto& [way, name] : ways)
    for (const std::uint64_t window : {0, 1, 4, 16, 64})
      for (const unsigned blocks : {16u, 32u, 64u, 128u}) {
        if (window != 0 && way != Way::stores && way != Way::copies && way != Way::bulk) continue;
        if (way == Way::engines && blocks != 16) continue;
        const double moved = static_cast<double>(bytes) * (world.size() - 1) * (way == Way::beside_engines ? 2 : 1);
        double best = 1e9;
        for (int round = 0; round < 4; ++round) {
          world.barrier();
          // The first launch brings the ranks together, more or less.
          move(way, window << 20, blocks);
          IMBREX_CUDA_TRY(cudaEventRecord(begin));
          for (int i = 0; i < runs; ++i) move(way, window << 20, blocks);
          IMBREX_CUDA_TRY(cudaEventRecord(end));
          move(way, window << 20, blocks);
          IMBREX_CUDA_TRY(cudaDeviceSynchronize());
          float milliseconds = 0;
          IMBREX_CUDA_TRY(cudaEventElapsedTime(&milliseconds, begin, end));
          const double own = static_cast<double>(milliseconds) * 1e-3 / runs;
          std::vector<double> all(static_cast<std::size_t>(world.size()));
          world.all_gather(&own, all.data(), sizeof own);
          best = std::min(best, *std::max_element(all.begin(), all.end()));
        }
        if (world.rank() == 0) {
          fmt::print("{:>40}  {:>2} MiB in turn {:>3} blocks  {:6.1f} GB/s\n", name, window, blocks,
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
