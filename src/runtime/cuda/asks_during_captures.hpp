// Threads of the library's own that use CUDA while the program captures.
#pragma once

#include <cuda_runtime_api.h>

namespace imbrex::cuda {

/// While it lives, this thread may ask events and streams though some stream is being captured, by this thread or, in
/// global mode, by another one: a capture forbids what may disturb it, asking does not, and a question that is refused
/// ends the capture.
class AsksDuringCaptures {
 public:
  AsksDuringCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~AsksDuringCaptures() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  AsksDuringCaptures(const AsksDuringCaptures&) = delete;
  AsksDuringCaptures& operator=(const AsksDuringCaptures&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace imbrex::cuda
