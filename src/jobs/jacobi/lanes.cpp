#include "jobs/jacobi/lanes.hpp"

#include <cuda_runtime_api.h>

#include "base/cuda_check.hpp"
#include "execute/cuda/lanes/graph.hpp"

namespace imbrex::jobs::jacobi {
namespace {

cudaStream_t of(CudaStream stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaEvent_t event(void* event) { return static_cast<cudaEvent_t>(event); }

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
  if (stream_ != nullptr) cudaStreamDestroy(of(stream_));
}

void Lane::copy(void* to, const void* from, std::size_t bytes) const {
  IMBREX_CUDA_TRY(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, of(stream_)));
}

void Lane::mark() const { IMBREX_CUDA_TRY(cudaEventRecord(event(event_), of(stream_))); }

void Lane::follow(const Lane& other) const {
  IMBREX_CUDA_TRY(cudaStreamWaitEvent(of(stream_), event(other.event_), 0));
}

Graph::Graph(const Lane& lane, const std::function<void()>& queue)
    : lane_(lane), graph_(std::make_unique<cuda::Graph>(of(lane.stream()), 1, queue)) {
  graph_->upload(of(lane.stream()));
}

Graph::~Graph() = default;

void Graph::replay() const { graph_->launch(of(lane_.stream())); }

}  // namespace imbrex::jobs::jacobi
