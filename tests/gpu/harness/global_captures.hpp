// Captures in global mode, which questions that other threads ask of CUDA end.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "imbrex/error.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::test {

/// By one thread of a process: any other that begins one, or asks something itself, may end it. The GPU is current.
class GlobalCaptures {
 public:
  GlobalCaptures() : words_(cuda::raw_memory(bytes)), copy_(cuda::raw_memory(bytes)) {
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~GlobalCaptures() {
    if (graph_ != nullptr) cudaGraphDestroy(graph_);
    cudaStreamDestroy(stream_);
  }
  GlobalCaptures(const GlobalCaptures&) = delete;
  GlobalCaptures& operator=(const GlobalCaptures&) = delete;

  /// Captures a fill and a copy, for up to `longest`. Throws where somebody ended the capture.
  void once(std::mt19937_64& random, std::chrono::microseconds longest) {
    const auto wait = [&] {
      std::this_thread::sleep_for(
          std::chrono::microseconds(random() % (static_cast<std::uint64_t>(longest.count()) / 2 + 1)));
    };
    if (graph_ != nullptr) IMBREX_CUDA_TRY(cudaGraphDestroy(graph_));
    graph_ = nullptr;
    value_ = static_cast<unsigned char>(random());
    IMBREX_CUDA_TRY(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    wait();
    const cudaError_t filled = cudaMemsetAsync(words_.get(), value_, bytes, stream_);
    const cudaError_t copied = cudaMemcpyAsync(copy_.get(), words_.get(), bytes, cudaMemcpyDeviceToDevice, stream_);
    wait();
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph_);
    for (const cudaError_t status : {filled, copied, ended}) IMBREX_CUDA_TRY(status);
  }

  /// Runs what the last one captured. Throws where its bytes are others.
  void judge() {
    cudaGraphExec_t executable = nullptr;
    IMBREX_CUDA_TRY(cudaGraphInstantiate(&executable, graph_, 0));
    IMBREX_CUDA_TRY(cudaGraphLaunch(executable, stream_));
    std::vector<unsigned char> now(bytes);
    IMBREX_CUDA_TRY(cudaMemcpyAsync(now.data(), copy_.get(), bytes, cudaMemcpyDeviceToHost, stream_));
    IMBREX_CUDA_TRY(cudaStreamSynchronize(stream_));
    IMBREX_CUDA_TRY(cudaGraphExecDestroy(executable));
    if (std::any_of(now.begin(), now.end(), [&](unsigned char byte) { return byte != value_; }))
      throw Error(ErrorCode::unsound, "a captured fill gave other bytes");
  }

 private:
  static constexpr std::size_t bytes = 4096;
  cuda::RawMemory words_, copy_;
  cudaStream_t stream_ = nullptr;
  cudaGraph_t graph_ = nullptr;
  unsigned char value_ = 0;
};

}  // namespace imbrex::test
