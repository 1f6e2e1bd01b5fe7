#include "execute/cuda/times/replay_marks.hpp"

#include <new>
#include <utility>

#include "execute/cuda/times/mark.hpp"
#include "runtime/cuda/check.hpp"

namespace imbrex::cuda {

ReplayMarks::ReplayMarks() {
  void* words = nullptr;
  IMBREX_CUDA_TRY(cudaHostAlloc(&words, sizeof(Words), cudaHostAllocMapped | cudaHostAllocPortable));
  words_.reset(new (words) Words{});
  void* on_device = nullptr;
  IMBREX_CUDA_TRY(cudaHostGetDevicePointer(&on_device, words, 0));
  on_device_ = static_cast<Words*>(on_device);
  IMBREX_CUDA_TRY(load_mark());
  for (cudaEvent_t* event : {&forked_, &marked_})
    IMBREX_CUDA_TRY(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
}

ReplayMarks::~ReplayMarks() {
  for (cudaEvent_t event : {forked_, marked_})
    if (event != nullptr) cudaEventDestroy(event);
}

void ReplayMarks::begin(cudaStream_t stream, cudaStream_t beside) {
  IMBREX_CUDA_TRY(cudaEventRecord(forked_, stream));
  IMBREX_CUDA_TRY(cudaStreamWaitEvent(beside, forked_, 0));
  IMBREX_CUDA_TRY(launch_mark(&on_device_->begun, beside));
  IMBREX_CUDA_TRY(cudaEventRecord(marked_, beside));
}

void ReplayMarks::end(cudaStream_t stream) {
  IMBREX_CUDA_TRY(cudaStreamWaitEvent(stream, marked_, 0));
  IMBREX_CUDA_TRY(launch_mark(&on_device_->ended, stream));
}

// What has ended is read first: an epoch may end between the two.
ReplayMarks::Seen ReplayMarks::look() {
  const std::uint64_t ended = words_->ended, begun = words_->begun;
  return {begun - std::exchange(seen_, begun), begun != ended};
}

}  // namespace imbrex::cuda
