// A CUDA graph of epochs.
#pragma once

#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

/// Epochs captured on a stream, for replay.
class Graph {
 public:
  /// Captures `epochs` calls of `enqueue`; every kernel must have run before.
  template <typename Enqueue>
  Graph(cudaStream_t stream, int epochs, Enqueue&& enqueue) {
    // Other ranks may be threads that allocate meanwhile.
    IMBREX_CUDA_TRY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    cudaGraph_t graph = nullptr;
    try {
      for (int i = 0; i < epochs; ++i) enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      throw;
    }
    IMBREX_CUDA_TRY(cudaStreamEndCapture(stream, &graph));
    const cudaError_t status = cudaGraphInstantiate(&executable_, graph, 0);
    cudaGraphDestroy(graph);
    IMBREX_CUDA_TRY(status);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() { cudaGraphExecDestroy(executable_); }

  /// So that the first launch does not.
  void upload(cudaStream_t stream) const { IMBREX_CUDA_TRY(cudaGraphUpload(executable_, stream)); }
  void launch(cudaStream_t stream) const { IMBREX_CUDA_TRY(cudaGraphLaunch(executable_, stream)); }

 private:
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace imbrex::cuda
