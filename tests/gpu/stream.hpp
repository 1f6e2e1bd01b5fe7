// A stream of a rank's own.
#pragma once

#include "imbrex/world.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::test {

/// Of the GPU that is current, which is the rank's once it has made an operator or selected it. All ranks make theirs
/// together: while a kernel of another rank on the GPU waits, the driver makes none.
class Stream {
 public:
  explicit Stream(World& world) {
    IMBREX_CUDA_TRY(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
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
