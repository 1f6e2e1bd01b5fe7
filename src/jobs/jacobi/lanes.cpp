#include "jobs/jacobi/lanes.hpp"

#include <cuda_runtime_api.h>

#include "base/cuda_check.hpp"

namespace imbrex::jobs::jacobi {
namespace {

cudaStream_t cuda(CudaStream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t event(void* event) { return static_cast<cudaEvent_t>(event); }
cudaGraphExec_t exec(void* graph) { return static_cast<cudaGraphExec_t>(graph); }

}  // namespace

std::uint32_t shared_bytes_of(int gpu) {
  int bytes = 0;
  IMBREX_CUDA_TRY(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu));
  constexpr int own = 2048;  // what kernels have besides
  return bytes > own ? static_cast<std::uint32_t>(bytes - own) : 0;
}

Lane::Lane(int gpu) {
  IMBREX_CUDA_TRY(cudaSetDevice(gpu));
  cudaStream_t stream = nullptr;
  cudaEvent_t made = nullptr;
  IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  stream_ = reinterpret_cast<CudaStream>(stream);
  IMBREX_CUDA_TRY(cudaEventCreateWithFlags(&made, cudaEventDisableTiming));
  event_ = made;
}

Lane::~Lane() {
  if (event_ != nullptr) cudaEventDestroy(event(event_));
  if (stream_ != nullptr) cudaStreamDestroy(cuda(stream_));
}

void Lane::copy(void* to, const void* from, std::size_t bytes) const {
  IMBREX_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda(stream_)));
}

void Lane::mark() const { IMBREX_CUDA_TRY(cudaEventRecord(event(event_), cuda(stream_))); }

void Lane::follow(const Lane& other) const {
  IMBREX_CUDA_TRY(cudaStreamWaitEvent(cuda(stream_), event(other.event_), 0));
}

Graph::Graph(const Lane& lane, const std::function<void()>& queue) : lane_(lane) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  IMBREX_CUDA_TRY(cudaStreamBeginCapture(cuda(lane.stream()), cudaStreamCaptureModeThreadLocal));
  queue();
  IMBREX_CUDA_TRY(cudaStreamEndCapture(cuda(lane.stream()), &graph));
  const cudaError_t status = cudaGraphInstantiate(&made, graph, 0);
  cudaGraphDestroy(graph);
  IMBREX_CUDA_TRY(status);
  graph_ = made;
  IMBREX_CUDA_TRY(cudaGraphUpload(made, cuda(lane.stream())));
}

Graph::~Graph() {
  if (graph_ != nullptr) cudaGraphExecDestroy(exec(graph_));
}

void Graph::replay() const { IMBREX_CUDA_TRY(cudaGraphLaunch(exec(graph_), cuda(lane_.stream()))); }

}  // namespace imbrex::jobs::jacobi
