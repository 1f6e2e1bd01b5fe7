// What a kernel pays in time for a put that it never makes: a sweep of Jacobi's method without one, with one after it,
// and with one after each of its rows. The three take turns, replayed from graphs; prints medians and ratios, a row a
// size.
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "shmem/dormant.hpp"

namespace {

using imbrex::shmem::test::Dormant;
using imbrex::shmem::test::sweep;
using imbrex::shmem::test::Where;
using Kernel = void (*)(const float*, float*, int, int, float*, Dormant);

void check(cudaError_t status) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "dormant: %s\n", cudaGetErrorString(status));
  std::exit(3);
}

// Sweeps of a graph: so many that a replay takes a millisecond or so.
constexpr int sweeps = 20, runs = 101;

struct Replay {
  cudaGraphExec_t graph = nullptr;
  std::vector<float> microseconds;  // of a sweep, by run
};

Replay capture(Kernel kernel, cudaStream_t stream, float* grids[2], int width, int height, float* residuals) {
  Replay replay;
  Dormant dormant{};
  dormant.never = -1;
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (int i = 0; i < sweeps; ++i)
    kernel<<<(width + 255) / 256, 256, 0, stream>>>(grids[i % 2], grids[(i + 1) % 2], width, height, residuals,
                                                    dormant);
  check(cudaStreamEndCapture(stream, &graph));
  check(cudaGraphInstantiate(&replay.graph, graph, 0));
  check(cudaGraphDestroy(graph));
  return replay;
}

float median(std::vector<float> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

int main() {
  cudaStream_t stream;
  cudaEvent_t begin, end;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check(cudaEventCreate(&begin));
  check(cudaEventCreate(&end));
  float *grids[2], *residuals;
  // The last one has too few threads to hide what a loop of loads waits for.
  constexpr int widths[] = {262144, 65536, 4096}, heights[] = {66, 258, 1026};
  constexpr std::size_t bytes = sizeof(float) * 262144 * 66;
  for (float*& grid : grids) {
    check(cudaMalloc(&grid, bytes));
    check(cudaMemset(grid, 0, bytes));
  }
  check(cudaMalloc(&residuals, 2 * sizeof(float)));
  std::printf("%8s %8s %12s %12s %8s %12s %8s\n", "width", "height", "without us", "behind us", "ratio", "within us",
              "ratio");
  for (int i = 0; i < 3; ++i) {
    const auto of = [&](Kernel kernel) { return capture(kernel, stream, grids, widths[i], heights[i], residuals); };
    Replay replays[] = {of(sweep<Where::nowhere>), of(sweep<Where::behind>), of(sweep<Where::within>)};
    for (int run = -10; run < runs; ++run)
      for (Replay& replay : replays) {
        float milliseconds = 0;
        check(cudaEventRecord(begin, stream));
        check(cudaGraphLaunch(replay.graph, stream));
        check(cudaEventRecord(end, stream));
        check(cudaEventSynchronize(end));
        check(cudaEventElapsedTime(&milliseconds, begin, end));
        if (run >= 0) replay.microseconds.push_back(milliseconds * 1000 / sweeps);
      }
    const float without = median(replays[0].microseconds), behind = median(replays[1].microseconds),
                within = median(replays[2].microseconds);
    std::printf("%8d %8d %12.2f %12.2f %8.4f %12.2f %8.4f\n", widths[i], heights[i], without, behind, behind / without,
                within, within / without);
    for (const Replay& replay : replays) check(cudaGraphExecDestroy(replay.graph));
  }
  return 0;
}
