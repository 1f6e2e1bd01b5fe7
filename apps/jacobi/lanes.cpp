#include "apps/jacobi/lanes.hpp"

#include <cuda_runtime_api.h>

#include "apps/common/cuda_check.hpp"

namespace imbrex::apps::jacobi {
namespace {

cudaStream_t of(CudaStream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t event(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

std::uint32_t shared_bytes_of(int gpu) {
  int bytes = 0;
  expect_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu), "cudaDeviceGetAttribute");
  constexpr int own = 2048;  // what kernels have besides
  return bytes > own ? static_cast<std::uint32_t>(bytes - own) : 0;
}

Lane::Lane(int gpu) {
  expect_cuda(cudaSetDevice(gpu), "cudaSetDevice");
  cudaStream_t stream = nullptr;
  cudaEvent_t made = nullptr;
  expect_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_ = reinterpret_cast<CudaStream>(stream);
  expect_cuda(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  event_ = made;
}

Lane::~Lane() {
  if (event_ != nullptr) cudaEventDestroy(event(event_));
  if (stream_ != nullptr) cudaStreamDestroy(of(stream_));
}

void Lane::copy(void* to, const void* from, std::size_t bytes) const {
  expect_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, of(stream_)), "cudaMemcpyAsync");
}

void Lane::mark() const { expect_cuda(cudaEventRecord(event(event_), of(stream_)), "cudaEventRecord"); }

void Lane::follow(const Lane& other) const {
  expect_cuda(cudaStreamWaitEvent(of(stream_), event(other.event_), 0), "cudaStreamWaitEvent");
}

Graph::Graph(const Lane& lane, const std::function<void()>& queue) : lane_(lane) {
  // Other PEs may be threads that allocate meanwhile.
  expect_cuda(cudaStreamBeginCapture(of(lane.stream()), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  cudaGraph_t captured = nullptr;
  try {
    queue();
  } catch (...) {
    cudaStreamEndCapture(of(lane.stream()), &captured);
    if (captured != nullptr) cudaGraphDestroy(captured);
    throw;
  }
  expect_cuda(cudaStreamEndCapture(of(lane.stream()), &captured), "cudaStreamEndCapture");
  cudaGraphExec_t made = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&made, captured, 0);
  cudaGraphDestroy(captured);
  expect_cuda(status, "cudaGraphInstantiate");
  graph_ = made;
  expect_cuda(cudaGraphUpload(made, of(lane.stream())), "cudaGraphUpload");
}

Graph::~Graph() { cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_)); }

void Graph::replay() const {
  expect_cuda(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), of(lane_.stream())), "cudaGraphLaunch");
}

}  // namespace imbrex::apps::jacobi
