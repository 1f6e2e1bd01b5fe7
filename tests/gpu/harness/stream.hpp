// A stream of a rank's own.
#pragma once

#include "imbrex/world.hpp"
#include "runtime/cuda/check.hpp"
#include "runtime/cuda/raw_memory.hpp"

namespace imbrex::test {

/// A stream of the current GPU, which is the rank's once it has made an operator or selected it. All ranks make theirs
/// together, and copy something: while a kernel of another rank on the GPU waits, the driver neither makes a stream nor
/// begins its first copies.
class Stream {
 public:
  explicit Stream(World& world) {
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (const std::size_t bytes : {std::size_t{256}, std::size_t{1} << 21}) {
      const cuda::RawMemory from = cuda::raw_memory(bytes), to = cuda::raw_memory(bytes);
      IMBREX_CUDA_TRY(cudaMemsetAsync(from.get(), 0, bytes, stream_));
      IMBREX_CUDA_TRY(cudaMemcpyAsync(to.get(), from.get(), bytes, cudaMemcpyDeviceToDevice, stream_));
      IMBREX_CUDA_TRY(cudaStreamSynchronize(stream_));
    }
    world.barrier();
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace imbrex::test
