// What starts a collective when tiles have posted: a gate kernel of one warp that polls the counter, as plans have it
// (src/execute/cuda/lanes/joint.cu), or a stream memory operation that waits for a word which the last arriver writes.
// One kernel posts after a while; the next one behind the gate writes down when it runs. Microseconds from the post to
// that, and of a graph of many gates that are open already; by streams and by graphs.
//
//   signaled_gates [ROUNDS]       (default 200; the last lines are JSON)
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

namespace {

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "signaled_gates: %s failed: %s\n", call, cudaGetErrorString(status));
  std::exit(3);
}
#define TRY(call) check(call, #call)

__device__ std::uint64_t now_ns() {
  std::uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

struct Times {
  std::uint64_t posted, ran;
};

constexpr std::uint64_t limit_ns = 2'000'000'000;

// What comes first lasts, so that the gate has been reached.
__global__ void post(std::uint32_t* word, std::uint32_t value, Times* times, std::uint64_t wait_ns) {
  const std::uint64_t begin = now_ns();
  while (now_ns() - begin < wait_ns) __nanosleep(100);
  times->posted = now_ns();
  __threadfence_system();
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(word), "r"(value) : "memory");
}

__global__ void __launch_bounds__(32) gate(const std::uint32_t* word, std::uint32_t value) {
  if (threadIdx.x != 0) return;
  const std::uint64_t begin = now_ns();
  for (;;) {
    std::uint32_t seen;
    asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(seen) : "l"(word) : "memory");
    if (seen >= value || now_ns() - begin > limit_ns) return;
    __nanosleep(100);
  }
}

__global__ void run(Times* times) { times->ran = now_ns(); }

using WaitValue = CUresult (*)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

WaitValue stream_wait() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
  if (cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &status) != cudaSuccess)
    return nullptr;
  return reinterpret_cast<WaitValue>(found);
}

enum class Gate { none, kernel, memory };

class Bench {
 public:
  Bench() : wait_(stream_wait()) {
    TRY(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking));
    TRY(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking));
    TRY(cudaMalloc(&word_, sizeof *word_));
    TRY(cudaHostAlloc(&times_, sizeof *times_, cudaHostAllocDefault));
    for (cudaEvent_t& event : events_) TRY(cudaEventCreate(&event));
  }

  bool has(Gate way) const { return way != Gate::memory || wait_ != nullptr; }

  // Median microseconds from the post to what stands behind the gate.
  double latency(Gate way, bool graph, int rounds) {
    std::vector<double> all;
    const Graph ready = graph ? captured([&] { both(way); }) : Graph{};
    for (int i = 0; i < rounds; ++i) {
      TRY(cudaMemset(word_, 0, sizeof *word_));
      TRY(cudaDeviceSynchronize());
      graph ? TRY(cudaGraphLaunch(ready.exec, main_)) : both(way);
      TRY(cudaDeviceSynchronize());
      all.push_back(static_cast<double>(static_cast<std::int64_t>(times_->ran - times_->posted)) * 1e-3);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }

  // Microseconds of a gate that is open, followed by a kernel, in a chain.
  double chain(Gate way, int rounds) {
    constexpr int links = 32;
    TRY(cudaMemset(word_, 1, sizeof *word_));
    const Graph ready = captured([&] {
      for (int i = 0; i < links; ++i) {
        put(way, main_);
        run<<<1, 32, 0, main_>>>(times_);
      }
    });
    std::vector<double> all;
    for (int i = 0; i < rounds; ++i) {
      TRY(cudaEventRecord(events_[0], main_));
      TRY(cudaGraphLaunch(ready.exec, main_));
      TRY(cudaEventRecord(events_[1], main_));
      TRY(cudaEventSynchronize(events_[1]));
      float milliseconds = 0;
      TRY(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]));
      all.push_back(milliseconds * 1e3 / links);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }

 private:
  struct Graph {
    cudaGraphExec_t exec = nullptr;
  };

  void put(Gate way, cudaStream_t stream) {
    if (way == Gate::kernel) gate<<<1, 32, 0, stream>>>(word_, 1);
    if (way == Gate::memory &&
        wait_(stream, reinterpret_cast<CUdeviceptr>(word_), 1, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS) {
      std::fprintf(stderr, "signaled_gates: cuStreamWaitValue32 failed\n");
      std::exit(3);
    }
  }

  void both(Gate way) {
    TRY(cudaEventRecord(events_[2], main_));
    TRY(cudaStreamWaitEvent(side_, events_[2]));
    // What posts comes first: a wait that stands before it could keep it from starting.
    post<<<1, 1, 0, main_>>>(word_, 1, times_, 50'000);
    put(way, side_);
    run<<<1, 32, 0, side_>>>(times_);
    TRY(cudaEventRecord(events_[3], side_));
    TRY(cudaStreamWaitEvent(main_, events_[3]));
  }

  Graph captured(const std::function<void()>& put) {
    cudaGraph_t graph = nullptr;
    Graph made;
    TRY(cudaStreamBeginCapture(main_, cudaStreamCaptureModeThreadLocal));
    put();
    TRY(cudaStreamEndCapture(main_, &graph));
    TRY(cudaGraphInstantiate(&made.exec, graph, 0));
    return made;
  }

  WaitValue wait_;
  cudaStream_t main_ = nullptr, side_ = nullptr;
  cudaEvent_t events_[4]{};
  std::uint32_t* word_ = nullptr;
  Times* times_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 200;
  cudaDeviceProp gpu{};
  TRY(cudaGetDeviceProperties(&gpu, 0));
  Bench bench;
  std::string rows;
  std::printf("%s, microseconds\n%-18s %14s %14s %14s\n", gpu.name, "gate", "post to run", "in a graph",
              "open, a link");
  for (const auto& [way, name] : {std::pair{Gate::kernel, "one-warp kernel"}, {Gate::memory, "stream memory op"}}) {
    if (!bench.has(way)) {
      std::printf("%-18s: the driver has none\n", name);
      continue;
    }
    const double stream = bench.latency(way, false, rounds), graph = bench.latency(way, true, rounds),
                 open = bench.chain(way, rounds);
    std::printf("%-18s %14.2f %14.2f %14.2f\n", name, stream, graph, open);
    char row[256];
    std::snprintf(row, sizeof row, "%s{\"gate\": \"%s\", \"stream\": %.3f, \"graph\": %.3f, \"open\": %.3f}",
                  rows.empty() ? "" : ",\n  ", name, stream, graph, open);
    rows += row;
  }
  const double plain = bench.chain(Gate::none, rounds);
  std::printf("%-18s %14s %14s %14.2f\n", "none", "", "", plain);
  std::printf("{\"gpu\": \"%s\", \"open_without\": %.3f, \"rows\": [\n  %s]}\n", gpu.name, plain, rows.c_str());
  return 0;
}
